/* SPDX-License-Identifier: Apache-2.0 */
/* [B] What copies bytes. One const table per device; adding a device is copying one file. */
#ifndef OKI_DEVICE_DEVICE_H
#define OKI_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>
#include <orbitkv/binding.h>

struct oki_device;
struct oki_log;
struct oki_stream;
struct oki_mark;

enum oki_direction {
	OKI_TO_PAGES,  /* restore */
	OKI_TO_BLOCKS, /* publish */
};

/* One layer of one binding, proven at registration. */
struct oki_layer_map {
	uint8_t *base; /* of page 0, in the device's address space */
	uint64_t page_stride;
	uint32_t segment_count;
	uint32_t page_count;
	struct oki_segment_map {
		uint64_t page_offset;  /* inside a page */
		uint64_t block_offset; /* inside a block's payload */
		uint64_t bytes; /* per page; page j of a block is at block_offset + j * bytes */
	} segments[OKV_MAX_SEGMENTS];
};

/*
 * A run: `blocks` blocks at constant distance in host memory, of each the same `inner` pages at
 * constant distance in the tensor. All layers and segments of a group share it. Row (o, j):
 *   host   host + o * host_pitch + seg.block_offset + (inner_first + j) * seg.bytes
 *   device base + (page + o * page_pitch + j * inner_step) * page_stride + seg.page_offset
 *   bytes  seg.bytes
 * Pitches are positive; a count of one has a pitch of zero. inner_step is 1 or more when
 * inner > 1.
 */
struct oki_run {
	uint8_t *host; /* payload of the first block */
	uint64_t host_pitch;
	uint32_t blocks;
	uint32_t page_pitch;
	uint32_t page;
	uint32_t inner;
	uint32_t inner_first;
	uint32_t inner_step;
};

/* One layer to copy. Layers of one group share their runs. */
struct oki_layer_copy {
	const struct oki_layer_map *map;
	const struct oki_run *runs;
	uint32_t run_count;
	/* Recorded when the layer's last byte is there, and never before; or NULL. */
	struct CUevent_st *event;
};

struct oki_device_config {
	int32_t index;		   /* CUDA ordinal */
	uint32_t threads;	   /* host device; 0: one per CPU, at most 8 */
	uint32_t copy_path;	   /* CUDA: enum okv_copy_path */
	uint32_t copy_sms;	   /* CUDA: SMs one copy kernel may use; 0: OKI_DEFAULT_SMS */
	const struct oki_log *log; /* borrowed until close; NULL: silent */
	/* Called from a device thread when a mark was reached, if the device has callbacks.
	 */
	void (*notify)(void *arg);
	void *arg;
};

/* Layers of one copy call. */
#define OKI_JOIN_MAX 64u
/* Enough for the rate of the link from 2 KiB fragments up, and little to miss for a model. */
#define OKI_DEFAULT_SMS 4u
#define OKI_MAX_SMS 64u

struct oki_device_ops {
	const char *name;
	uint32_t kind;	      /* enum okv_device_kind */
	bool has_callbacks;   /* notify is called; otherwise marks must be polled */
	bool has_gpu_streams; /* callers may pass streams and events */
	uint64_t max_pitch;   /* longest host or device pitch of a strided copy */

	/* Everything lazy happens here: contexts, threads. The caller's context stays current. */
	int (*open)(const struct oki_device_config *config, struct oki_device **ret_device,
		    struct okv_error *err);
	void (*close)(struct oki_device *device); /* all streams and marks are gone */
	/* The calling thread is the library's own and uses this device alone until it ends: calls
	 * in it need not leave it as they found it. */
	void (*attach)(struct oki_device *device);

	/* Which device it is, and the NUMA node nearest to it, -1: any. */
	void (*identify)(struct oki_device *device, uint8_t ret_id[16], int32_t *ret_node);

	/* Make host memory usable for copies. Counted per base: the same arena may come again. */
	int (*pin)(struct oki_device *device, void *base, uint64_t bytes, bool read_only,
		   struct okv_error *err);
	void (*unpin)(struct oki_device *device, void *base);

	/* Does [base, base + bytes) belong to one allocation this device can reach? */
	int (*check_memory)(struct oki_device *device, const void *base, uint64_t bytes,
			    struct okv_error *err);
	/* Are these events usable here? NULL entries are none. One that was is not asked again: who
	 * destroys it hears of that when it is to be recorded. */
	int (*check_events)(struct oki_device *device, struct CUevent_st *const *events,
			    uint32_t count, struct okv_error *err);

	int (*stream_create)(struct oki_device *device, struct oki_stream **ret_stream,
			     struct okv_error *err);
	/* Everything but fences ended. May wait for these. */
	void (*stream_destroy)(struct oki_stream *stream);
	/* Everything queued ended and the stream gets a new user: what was kept for runs goes. */
	void (*stream_recycle)(struct oki_stream *stream);

	/* Later work of stream follows what is in the caller's streams now: 1, or 0 if none of them
	 * had any, so that it waits for none of these. On the caller's thread; never blocks.
	 * OKV_E_INVAL: wrong context, capturing. */
	int (*fence)(struct oki_stream *stream, struct CUstream_st *const *ready, uint32_t count,
		     struct okv_error *err);
	/*
	 * Queue layers that follow each other in consumption order, of any groups, at most
	 * OKI_JOIN_MAX, with at most OKV_MAX_GROUPS different runs: the first ones, as many as the
	 * device takes at once. Returns how many those are, at least one; the rest is for the next
	 * call, at once. Borrows maps and runs until a mark recorded later is complete, the
	 * array for the call only. Until the stream is recycled the same runs pointer and count
	 * stand for the same runs, and after a refusal nothing more is copied. A layer may come
	 * again with other runs, which may overtake the first ones: its event is then for
	 * record_event().
	 */
	int (*copy)(struct oki_stream *stream, enum oki_direction direction,
		    const struct oki_layer_copy *layers, uint32_t layer_count,
		    struct okv_error *err);
	/* Behind everything that was queued, as record(). */
	int (*record_event)(struct oki_stream *stream, struct CUevent_st *event,
			    struct okv_error *err);

	int (*mark_create)(struct oki_device *device, struct oki_mark **ret_mark,
			   struct okv_error *err);
	void (*mark_destroy)(struct oki_mark *mark); /* complete, or never recorded */
	/* Behind everything that was queued, also by a copy that was refused midway. Never blocks.
	 */
	int (*record)(struct oki_stream *stream, struct oki_mark *mark, struct okv_error *err);
	/* 1 all work before the record is complete, 0 not yet, negative: OKV_E_COPY (that work
	 * failed but ended), OKV_E_POISONED (nobody knows whether it ended). */
	int (*query)(struct oki_mark *mark, struct okv_error *err);
	/* Of a stream that was given fences alone: are these over? On any thread. */
	bool (*is_idle)(struct oki_stream *stream);
	/* Block until everything queued in the stream ended; 0, OKV_E_COPY or OKV_E_POISONED. */
	int (*drain)(struct oki_stream *stream, struct okv_error *err);
};

extern const struct oki_device_ops oki_device_host;
extern const struct oki_device_ops oki_device_cuda; /* open says why in a host-only build */

/* The table for an enum okv_device_kind, or NULL. */
const struct oki_device_ops *oki_device_find(uint32_t kind);

#endif
