/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Devices copy bytes. Each is one const table of functions; to add one, copy a file. */
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
 * A run: `blocks` blocks at a constant distance in host memory, each with the same `inner` pages at
 * a constant distance in the tensor. All layers and segments of a group share it. Row (o, j):
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
	/* Recorded behind the layer's last byte, never before it. NULL: no event. */
	struct CUevent_st *event;
};

struct oki_device_config {
	int32_t index;		   /* CUDA ordinal */
	uint32_t threads;	   /* host device; 0: one per CPU, at most 8 */
	uint32_t copy_path;	   /* CUDA: enum okv_copy_path */
	uint32_t copy_sms;	   /* CUDA: SMs one copy kernel may use; 0: OKI_DEFAULT_SMS */
	const struct oki_log *log; /* borrowed until close; NULL: silent */
	/* Called from a device thread once a mark is complete, if the device has callbacks. */
	void (*notify)(void *arg);
	void *arg;
};

/* Most layers of one copy call. */
#define OKI_JOIN_MAX 64u
/* Fills the link with fragments of 2 KiB and more, and takes few SMs from a model. */
#define OKI_DEFAULT_SMS 4u
#define OKI_MAX_SMS 64u

struct oki_device_ops {
	const char *name;
	uint32_t kind;	      /* enum okv_device_kind */
	bool has_callbacks;   /* notify is called; otherwise marks must be polled */
	bool has_gpu_streams; /* callers may pass streams and events */
	uint64_t max_pitch;   /* longest host or device pitch of a strided copy */

	/* Contexts and threads are set up here, no earlier. The caller's CUDA context stays
	 * current. */
	int (*open)(const struct oki_device_config *config, struct oki_device **ret_device,
		    struct okv_error *err);
	void (*close)(struct oki_device *device); /* all streams and marks are destroyed */
	/* The calling thread belongs to the library and uses only this device until it ends, so
	 * calls on it need not restore its state. */
	void (*attach)(struct oki_device *device);

	/* The device's id, and the nearest NUMA node; -1: any. */
	void (*identify)(struct oki_device *device, uint8_t ret_id[16], int32_t *ret_node);

	/* Register host memory for copies. Counted per base: an arena may be pinned repeatedly. */
	int (*pin)(struct oki_device *device, void *base, uint64_t bytes, bool read_only,
		   struct okv_error *err);
	void (*unpin)(struct oki_device *device, void *base);

	/* Does [base, base + bytes) belong to one allocation this device can reach? */
	int (*check_memory)(struct oki_device *device, const void *base, uint64_t bytes,
			    struct okv_error *err);
	/* Are these events usable here? NULL entries are skipped. A usable event may not be checked
	 * again: if its owner destroys it, recording it fails. */
	int (*check_events)(struct oki_device *device, struct CUevent_st *const *events,
			    uint32_t count, struct okv_error *err);

	int (*stream_create)(struct oki_device *device, struct oki_stream **ret_stream,
			     struct okv_error *err);
	/* All queued work but fences has ended. May wait for the fences. */
	void (*stream_destroy)(struct oki_stream *stream);
	/* All queued work has ended and another operation gets the stream: forget what was prepared
	 * for runs. */
	void (*stream_recycle)(struct oki_stream *stream);

	/* Later work of stream follows what is queued in the caller's streams now. Returns 1, or 0
	 * when they were all idle, so that there is nothing to wait for. On the caller's thread;
	 * never blocks. OKV_E_INVAL: wrong context, or capturing. */
	int (*fence)(struct oki_stream *stream, struct CUstream_st *const *ready, uint32_t count,
		     struct okv_error *err);
	/*
	 * Queue consecutive layers in consumption order, of any groups: at most OKI_JOIN_MAX, with
	 * at most OKV_MAX_GROUPS different runs. The device takes as many of the first ones as it
	 * can at once and returns their number, at least one; the caller passes the rest in its
	 * next call, immediately. Borrows maps and runs until a mark recorded later is complete,
	 * the array for the call only. Until the stream is recycled the same runs pointer and
	 * count must mean the same runs. After a failure the caller copies nothing more. A layer
	 * may be queued again with other runs, which may overtake the first ones: its event must
	 * then go through record_event().
	 */
	int (*copy)(struct oki_stream *stream, enum oki_direction direction,
		    const struct oki_layer_copy *layers, uint32_t layer_count,
		    struct okv_error *err);
	/* Record the event behind everything queued, as record() does. */
	int (*record_event)(struct oki_stream *stream, struct CUevent_st *event,
			    struct okv_error *err);

	int (*mark_create)(struct oki_device *device, struct oki_mark **ret_mark,
			   struct okv_error *err);
	void (*mark_destroy)(struct oki_mark *mark); /* complete, or never recorded */
	/* Record the mark behind everything queued, also by a copy that failed midway. Never
	 * blocks. */
	int (*record)(struct oki_stream *stream, struct oki_mark *mark, struct okv_error *err);
	/* 1: all work before the record is complete; 0: not yet; OKV_E_COPY: that work failed but
	 * ended; OKV_E_POISONED: it cannot be known whether it ended. */
	int (*query)(struct oki_mark *mark, struct okv_error *err);
	/* For a stream that has only fences: have they ended? On any thread. */
	bool (*is_idle)(struct oki_stream *stream);
	/* Block until everything queued in the stream ended; 0, OKV_E_COPY or OKV_E_POISONED. */
	int (*drain)(struct oki_stream *stream, struct okv_error *err);
};

extern const struct oki_device_ops oki_device_host;
extern const struct oki_device_ops oki_device_cuda; /* host-only build: open fails, with why */

/* The table for an enum okv_device_kind, or NULL. */
const struct oki_device_ops *oki_device_find(uint32_t kind);

#endif
