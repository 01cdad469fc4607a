/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Between the files of the executor. */
#ifndef OKI_EXEC_PRIVATE_H
#define OKI_EXEC_PRIVATE_H

#include "exec/worker.h"

/*
 * Fairness. A GPU's copy engines serve one stream for as long as it has work queued, so a transfer
 * larger than this goes in pieces of at most this, and layers that are larger in slices (a row of a
 * page is never cut): it is at most two pieces ahead of its copies, some milliseconds of the link,
 * and when it may queue the next one it first lets all smaller transfers end that
 * have copies queued by then. Those arriving later wait for that one piece: neither side starves.
 * A piece is also what a transfer submits before others have their turn, so a small one goes out
 * whole in its first turn. Size decides, and nothing else: a small restore is what a request waits
 * for, and it costs a large one next to nothing.
 */
#define OKI_PIECE_BYTES (64u << 20)

enum oki_transfer_phase {
	OKI_PHASE_CLAIM,
	OKI_PHASE_PARTS,
	OKI_PHASE_DRAIN,
	OKI_PHASE_FAILED, /* what was accepted before the failure is being copied */
};

struct oki_stream_node {
	struct oki_stream *stream;
	bool fenced; /* it may still wait for streams of an operation that was never claimed */
	struct oki_stream_node *next;
};

/* So many streams that wait for fences are left alone at most. */
#define OKI_FENCED_STREAMS 32u

/* Marks kept for the next transfers: making one costs a small transfer a good part of its time. */
#define OKI_SPARE_MARKS 32u

/* By direction and size: 1 MiB and less than 2, and so on; what has more than OKI_PIECE_BYTES goes
 * in pieces. */
#define OKI_POLL_SIZES 7u

/* Of transfers so far, for each MiB; 0: unknown. */
struct oki_poll_times {
	uint64_t seen_ns; /* the fastest one had ended by then */
	uint64_t due_ns;  /* from then on the next one is looked at closely; no later than that */
	bool sure;	  /* one ended just then; else the fastest may have ended later */
};

struct oki_worker {
	struct oki_worker_config config;
	const struct oki_device_ops *ops;
	struct oki_device *device;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct oki_transfer *queue, **queue_tail; /* under lock */
	bool stop;				  /* under lock */
	_Atomic bool work_pending;		  /* queued, woken or stopped; changes under lock */
	bool ending;				  /* stop as the thread saw it */
	struct oki_transfer *active;		  /* the thread's */
	struct oki_transfer *unreaped;		  /* ended, not settled; the thread's */
	uint64_t arrived;			  /* transfers so far; the thread's */
	struct oki_compile_scratch scratch;	  /* the thread's */
	pthread_mutex_t stream_lock;
	struct oki_stream_node *streams;	 /* idle ones */
	struct oki_stream_node *spare;		 /* nodes without a stream */
	struct oki_mark *marks[OKI_SPARE_MARKS]; /* complete; under stream_lock */
	uint32_t mark_count;
	_Atomic uint64_t wakeups;
	struct oki_poll_times poll_times[2][OKI_POLL_SIZES]; /* the thread's */
};

/* Take a part in hand: its runs, and how far it was submitted. */
int oki_submit_begin(struct oki_worker *w, struct oki_transfer *t, struct oki_part *part,
		     struct okv_error *err);
/*
 * Copy some of the part in hand, layer by layer in consumption order, and record what that
 * completes. 1: the part is submitted. 0: enough for this turn, or for now; *ret_moved says
 * whether anything was queued.
 */
int oki_submit_some(struct oki_worker *w, struct oki_transfer *t, bool *ret_moved,
		    struct okv_error *err);
/* Record every layer that nothing will complete any more, then the end of all copies. */
int oki_submit_end(struct oki_worker *w, struct oki_transfer *t, struct okv_error *err);
/* Tell the source about layers whose bytes are in place. True when something was told. */
bool oki_layers_report(struct oki_worker *w, struct oki_transfer *t, bool all);

/*
 * When to look again. Small transfers end when their bytes are through the link, which past ones
 * tell: the thread sleeps until just before, spins around that moment, and then looks now and then.
 * It looks a few times on the way there, too: past ones may have been slow.
 */
void oki_poll_started(struct oki_transfer *t, uint64_t now);
void oki_poll_submitted(struct oki_worker *w, struct oki_transfer *t, uint64_t now);
/* It was looked at, all of it is queued, and some is on its way. */
void oki_poll_looked(struct oki_worker *w, struct oki_transfer *t, uint64_t now);
void oki_poll_ended(struct oki_worker *w, const struct oki_transfer *t, uint64_t now);
/* Will it end in a moment? */
bool oki_poll_is_soon(const struct oki_transfer *t, uint64_t now);
/* Is it worth looking again at once? moved_at: something got on. */
bool oki_poll_spins(const struct oki_worker *w, uint64_t now, uint64_t moved_at, uint64_t spin_ns);
/* Else when; UINT64_MAX: after a wake-up. */
uint64_t oki_poll_next(const struct oki_worker *w, uint64_t now);

#endif
