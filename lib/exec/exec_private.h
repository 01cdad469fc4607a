/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Private to lib/exec. */
#ifndef OKI_EXEC_PRIVATE_H
#define OKI_EXEC_PRIVATE_H

#include "exec/worker.h"

/*
 * Fairness. A GPU's copy engines serve one stream for as long as it has work queued. So a transfer
 * larger than this is queued in pieces of at most this, and a layer that is larger in slices (a row
 * of a page is never cut). Such a transfer is at most two pieces ahead of its copies, some
 * milliseconds of the link. Before it queues the next piece it lets all smaller transfers end that
 * have copies queued by then; those that arrive later wait for that one piece, so neither side
 * starves. A piece is also the most that a transfer submits in one turn, so a small transfer is
 * submitted whole in its first turn. Only size decides: a request waits for its small restore,
 * which costs a large transfer next to nothing.
 */
#define OKI_PIECE_BYTES (64u << 20)

enum oki_transfer_phase {
	OKI_PHASE_CLAIM,
	OKI_PHASE_PARTS,
	OKI_PHASE_DRAIN,
	OKI_PHASE_FAILED, /* copies queued before the failure still run */
};

struct oki_stream_node {
	struct oki_stream *stream;
	bool fenced; /* it may still wait for streams of an operation that was never claimed */
	struct oki_stream_node *next;
};

/* At most this many idle streams that wait for fences are kept unused; beyond that one of them is
 * reused. */
#define OKI_FENCED_STREAMS 32u

/* Marks kept for later transfers: creating one takes a good part of the time of a small
 * transfer. */
#define OKI_SPARE_MARKS 32u

/* Sizes of poll_times: less than 2 MiB, less than 4, and so on up to OKI_PIECE_BYTES, above which a
 * transfer goes in pieces. */
#define OKI_POLL_SIZES 7u

/* Times of past transfers for each MiB; 0: unknown. */
struct oki_poll_times {
	uint64_t seen_ns; /* when the fastest one was found ended */
	uint64_t due_ns;  /* estimated end of the fastest one, no later than seen_ns */
	bool sure;	  /* one ended close to due_ns; else the fastest may have ended later */
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
	bool ending;				  /* the thread's copy of stop */
	struct oki_transfer *active;		  /* the thread's */
	struct oki_transfer *unreaped;		  /* ended, polled for Reaped; the thread's */
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

/* Start a part: compile its runs, nothing of it is submitted yet. */
int oki_submit_begin(struct oki_worker *w, struct oki_transfer *t, struct oki_part *part,
		     struct okv_error *err);
/*
 * Copy some of the part in hand, layer by layer in consumption order, and record the layers that
 * this completes. 1: the part is submitted. 0: the piece is full, or copies must end first;
 * *ret_moved says whether anything was queued.
 */
int oki_submit_some(struct oki_worker *w, struct oki_transfer *t, bool *ret_moved,
		    struct okv_error *err);
/* Record every layer that is not recorded yet, then the final event and mark. */
int oki_submit_end(struct oki_worker *w, struct oki_transfer *t, struct okv_error *err);
/* Report layers whose bytes are in place to the source. True if any was reported. */
bool oki_layers_report(struct oki_worker *w, struct oki_transfer *t, bool all);

/*
 * When to poll again. A small transfer ends when its bytes have crossed the link, which past
 * transfers predict: the thread sleeps until just before that time, spins around it, then polls at
 * intervals. It also polls a few times before, since past transfers may have been slow.
 */
void oki_poll_started(struct oki_transfer *t, uint64_t now);
void oki_poll_submitted(struct oki_worker *w, struct oki_transfer *t, uint64_t now);
/* It was polled: all of it is queued, and some copies still run. */
void oki_poll_looked(struct oki_worker *w, struct oki_transfer *t, uint64_t now);
void oki_poll_ended(struct oki_worker *w, const struct oki_transfer *t, uint64_t now);
/* Is it predicted to end within the time of two wakeups? */
bool oki_poll_is_soon(const struct oki_transfer *t, uint64_t now);
/* Should the thread spin? moved_at: when a transfer last made progress. */
bool oki_poll_spins(const struct oki_worker *w, uint64_t now, uint64_t moved_at, uint64_t spin_ns);
/* If not, when to poll next; UINT64_MAX: only after a wakeup. */
uint64_t oki_poll_next(const struct oki_worker *w, uint64_t now);

#endif
