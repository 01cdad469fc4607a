/* SPDX-License-Identifier: Apache-2.0 */
/*
 * [B] One operation as the executor sees it: parts come from a source, copies go to a device
 * stream, and progress is reported to the source. In an engine the source is a grant.
 */
#ifndef OKI_EXEC_WORK_H
#define OKI_EXEC_WORK_H

#include <stdbool.h>
#include "device/device.h"
#include "plan/compile.h"
#include "plan/geometry.h"

struct oki_worker;

/* Blocks of one of the transfer's groups inside one part, checked by the source. */
struct oki_part_group {
	const struct oki_pair *pairs; /* valid until any source is asked for a part */
	uint32_t count;
};

struct oki_part {
	uint32_t groups_done; /* bit g: no later part has blocks of the transfer's group g */
	bool last;
	struct oki_part_group groups[OKV_MAX_GROUPS];
};

/* All calls come from the worker's thread, in this order. */
struct oki_transfer_source {
	/* 1: this executor may touch the memory now; *ret_empty: there will be no part.
	 * 0: not yet, ask again after a wake-up. Negative: never; no other call follows. */
	int (*claim)(void *arg, bool *ret_empty);
	/* 1: *ret_part is filled; 0: not yet; negative OKV_E_*: no part follows */
	int (*next)(void *arg, struct oki_part *ret_part, struct okv_error *err);
	void (*layer_enqueued)(void *arg, uint32_t layer);
	/* The operation will fail; copies may still run. Once, before ended. */
	void (*failing)(void *arg, const struct okv_error *why);
	void (*enqueued)(void *arg);
	void (*layer_done)(void *arg, uint32_t layer);
	/* May be NULL. A hint: the copies are about to stop, so a sleeping waiter may wake. At most
	 * once, and not always. */
	void (*soon)(void *arg);
	/* All copies stopped; bytes: payload of the parts taken. status OKV_E_POISONED: it is
	 * unknown whether they stopped. If poll_reaped is NULL this is the last call, and the
	 * transfer may be freed inside. */
	void (*ended)(void *arg, int status, uint64_t bytes);
	/* May be NULL. G1: every time before the worker sleeps or blocks while claim returns 0.
	 * From here on, what claim waits for must wake the worker. If it came earlier, this call
	 * must find it and wake the worker. */
	void (*rest)(void *arg);
	/* May be NULL. After ended, repeatedly while the worker is awake; it stays awake a while
	 * for the seal of a publish. True: nothing is left to poll for. last: no further call,
	 * whatever this one returns. After true or last the transfer may be freed inside. */
	bool (*poll_reaped)(void *arg, bool last);
};

struct oki_transfer_group {
	uint32_t group;	       /* schema group */
	uint32_t count;	       /* blocks asked for */
	const uint32_t *pages; /* count * pages_per_block, borrowed until ended */
};

/* How far one part has been submitted. Arrays are by schema group. */
struct oki_submission {
	bool in_hand;
	bool last;
	uint32_t place;	 /* in consumption order: the next layer */
	uint32_t at_run; /* of that layer: the next run, not 0 only within a sliced layer */
	uint32_t asked;	 /* bit g: the transfer has blocks of group g */
	uint32_t done;	 /* bit g: no later part has blocks of group g */
	uint32_t blocks[OKV_MAX_GROUPS];
	struct oki_runs runs[OKV_MAX_GROUPS]; /* borrowed from kept */
	/* Most rows of a slice, for layers larger than a piece; no run has more. 0: the group has
	 * no such layer. */
	uint64_t slice_rows[OKV_MAX_GROUPS];
};

/*
 * On a device that queues without bound, a transfer is at most two pieces ahead of its copies: it
 * fills one while the other is copied. marks[i] ends piece i.
 */
struct oki_pieces {
	struct oki_mark *marks[2]; /* NULL: a small transfer, or a device with callbacks */
	bool busy[2];
	uint32_t filling;
	uint64_t bytes; /* in the piece being filled */
	bool deferred;	/* waits for small transfers up to defer_sequence */
	uint64_t defer_sequence;
};

struct oki_transfer {
	/* set by the caller; borrowed until ended */
	const struct oki_transfer_source *source;
	void *arg;
	enum oki_direction direction;
	uint32_t group_count;
	struct oki_transfer_group groups[OKV_MAX_GROUPS];
	struct CUevent_st **events;	/* one per layer or NULL entries; NULL: none at all */
	struct CUevent_st *final_event; /* recorded after the last copy, or NULL */
	struct oki_stream *stream;	/* of the worker's pool, fenced by the caller */
	bool fenced; /* the stream may wait for a caller's streams; the worker's from submit on */

	/* the worker's */
	struct oki_transfer *next;
	uint32_t phase;
	int failed;	       /* OKI_PHASE_FAILED: the status it ends with */
	uint64_t sequence;     /* place in the worker's order of arrival */
	uint64_t started_ns;   /* its first copy was queued */
	uint64_t expected_ns;  /* predicted earliest end of its copies; 0: unknown */
	uint64_t submitted_ns; /* its last copy was queued */
	uint64_t looked_ns;    /* last poll that found copies pending; 0: none */
	bool told_soon;
	uint64_t bytes;
	bool *recorded;		 /* per layer */
	struct oki_mark **marks; /* per layer on devices with callbacks; NULL entries */
	struct oki_mark *final_mark;
	struct oki_submission part; /* the part in hand */
	struct oki_pieces pieces;
	uint32_t next_done;    /* place in consumption order of the next layer to report */
	struct oki_runs *kept; /* runs the device borrows until drained */
	uint32_t kept_count;
};

#endif
