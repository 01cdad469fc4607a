/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Between the files of the CUDA device. */
#ifndef OKI_DEVICE_CUDA_DEVICE_H
#define OKI_DEVICE_CUDA_DEVICE_H

#include <assert.h>
#include <stdatomic.h>

#include "device/cuda/cuda_api.h"
#include "device/device.h"
#include "kernels/gather_copy.h"

/* Pieces of one launch, counted in 32 bits. With few enough rows no launch has more. */
#define OKI_CUDA_UNITS_MAX 0x7fffffffu
#define OKI_CUDA_ROWS_MAX (OKI_CUDA_UNITS_MAX / OKI_GATHER_COLUMNS)
/* A launch of up to so many bytes asks for all it can at once. */
#define OKI_CUDA_SHORT_BYTES (4u << 20)

/* Pinned host memory, one registration, and what the GPU must add to its addresses. */
struct oki_cuda_mapping {
	uint8_t *base;
	uint64_t bytes;
	uint64_t shift;
	uint32_t pieces; /* of the arena that starts here, in entries from this one on; else 0 */
};

/* An allocation that pages lie in. One that is not kept costs speed alone. */
#define OKI_CUDA_TENSORS 64u
struct oki_cuda_tensor {
	uint64_t from, to;
};

/* A kernel that does nothing, to see whether it waits for an SM. The worker's. */
#define OKI_CUDA_LOOKS 8u
#define OKI_CUDA_LOOKS_HELD 2u /* so many of them waited: SMs are held */
struct oki_cuda_probe {
	CUstream stream;
	CUevent from, to; /* with times */
	bool works;
	bool out;  /* launched, and nobody has seen its end */
	bool lost; /* launched, and nobody ever will */
	uint64_t launched_ns, asked_ns, call_ns;
	uint32_t looks;		      /* so far */
	double waits[OKI_CUDA_LOOKS]; /* of the last ones; 0: it found an SM at once */
};

/* Events of callers that were looked at, by a hash of their handles. One that is not kept costs a
 * look alone, and one that was destroyed since is refused when it is to be recorded. */
#define OKI_CUDA_EVENT_BITS 10u

struct oki_device {
	const struct oki_cuda_api *api;
	int32_t index;
	CUdevice device;
	CUcontext context; /* the primary one, retained */
	uint32_t path;	   /* enum okv_copy_path, never KERNEL without a kernel */
	uint32_t sms;
	int priority; /* of our streams: the highest */
	CUmodule module;
	CUfunction gather[3];		/* for 8, 16 and 32 lanes; NULL: no kernel */
	double link[2];			/* by direction: bytes per ns of one long copy */
	struct oki_cuda_mapping *reach; /* owned; changed only while nothing is copied */
	uint32_t reach_count;
	bool in_pieces;	    /* some arena in reach has several */
	uint64_t pin_limit; /* longest registration; what is longer goes in pieces */
	struct oki_cuda_tensor tensors[OKI_CUDA_TENSORS]; /* changed as reach is */
	uint32_t tensor_count;
	_Atomic uintptr_t events[1u << OKI_CUDA_EVENT_BITS];
	_Atomic uint64_t copying[2]; /* by direction: bytes that streams have given to engines */
	/* Streams that restore: where the GPU sees it, or in own_restores. */
	_Atomic uint32_t *restores;
	CUdeviceptr restores_at; /* 0: the GPU does not see it */
	_Atomic uint32_t own_restores;
	struct oki_cuda_probe probe;
	_Atomic bool no_value_waits; /* the driver refused one */
};

/* Memory for tables: filled in pinned host memory, read by the kernel from the GPU's. */
struct oki_cuda_chunk {
	struct oki_cuda_chunk *next;
	uint8_t *host;
	CUdeviceptr device;
	uint64_t bytes, used;
	uint64_t kept; /* used for good */
};

/*
 * Counters of a stream's kernels: [0] says how far the last one is. The others are of even and of
 * odd kernels: those of one kind never overlap, so that at any moment each is one kernel's.
 */
#define OKI_CUDA_SIGNALS OKI_JOIN_MAX
#define OKI_CUDA_SIGNAL(kernel) (1u + (kernel) % 2 * OKI_CUDA_SIGNALS)
#define OKI_CUDA_TICKETS(kernel) (1u + 2 * OKI_CUDA_SIGNALS + (kernel) % 2)
#define OKI_CUDA_COUNTERS (1u + 2 * OKI_CUDA_SIGNALS + 2)
/* Behind the counters: whether restores are on their way, and when even and odd kernels will be
 * through, as they say when they begin. */
#define OKI_CUDA_BESIDE OKI_CUDA_COUNTERS
#define OKI_CUDA_UNTIL(kernel) (OKI_CUDA_COUNTERS + 1 + 2 * ((kernel) % 2))
#define OKI_CUDA_COUNTER_BYTES ((OKI_CUDA_COUNTERS + 1 + 2 * 2) * sizeof(uint32_t))
static_assert((OKI_CUDA_COUNTERS + 1) % 2 == 0, "64-bit words");

/* A point in a kernel's work: the layers before `end` are copied when the counter reaches count. */
struct oki_cuda_signal {
	uint32_t end;
	uint32_t counter;
	uint32_t count;
};

/* What a copy call launched for more layers than it answered for: the next calls follow it. */
struct oki_cuda_pending {
	struct oki_cuda_signal signals[OKI_JOIN_MAX];
	uint32_t count;	 /* 0: nothing is pending */
	uint32_t next;	 /* the first signal nobody followed */
	uint32_t layers; /* answered for */
};

/*
 * `stream` has what an operation starts with, copies by engines, every other kernel, and
 * marks as long as nothing is in the other ones. These start after a point in it (fork), or
 * wait for its kernels: side     layer events of a kernel, each behind a wait for the layer's
 * counter, so that one kernel copies many layers and each is ready as soon as it can be; and
 * marks behind all, for which no kernel needs to wait; lane     the other kernels. Each one
 * starts when the one before it has begun its last pieces, or at once if that is a short one, so
 * that a model's blocks never get the SMs between two of them, and when the one before that has
 * ended, so that never three are there. A GPU has few queues for the streams of a process, 8 unless
 * it is told otherwise, and a stream that waits keeps one from all others: an operation takes three
 * at most.
 */
struct oki_stream {
	struct oki_device *device;
	CUstream stream;
	CUstream side, lane;
	CUevent point; /* of a stream that another one is to follow from now on */
	CUevent fork;
	bool side_open, lane_open; /* has work that stream does not wait for */
	bool side_last;		   /* side waits for all that is in the others */
	bool side_counts;	   /* it follows what gave the counters their first values */
	uint32_t kernels;	   /* since fork was recorded; 0: the next one records it */
	CUdeviceptr counters;	   /* 0: kernels follow each other in stream, one for every event */
	CUdeviceptr counter_memory;	    /* 0: none */
	uint32_t counts[OKI_CUDA_COUNTERS]; /* what the kernels launched so far bring them to */
	bool gate;	    /* the next kernel waits for counts[0]: the last one is no short one */
	uint32_t stretches; /* copied since it was recycled */
	struct oki_cuda_pending pending;
	bool chosen; /* by_kernel holds until the piece ends or there are other runs */
	bool by_kernel;
	/* Since it was recycled: bytes given to engines, by direction, and whether it restores. */
	uint64_t copying[2];
	bool restores;
	struct oki_cuda_chunk *chunks;
	struct oki_cuda_plan *plans; /* of this stream's runs until it is recycled */
};

/*
 * Every driver call stands between these. The caller's current context comes back, and its thread
 * counts as relaxed meanwhile: another thread that captures a graph in global mode would
 * otherwise have its capture broken by our queries.
 */
struct oki_cuda_scope {
	const struct oki_cuda_api *api; /* NULL: the thread is attached, nothing to undo */
	CUstreamCaptureMode mode;
};

CUresult oki_cuda_enter(const struct oki_cuda_api *api, CUcontext context,
			struct oki_cuda_scope *ret_scope);
void oki_cuda_leave(struct oki_cuda_scope *scope);
/* The calling thread is ours for good: it keeps the context, and scopes cost nothing in it. */
void oki_cuda_attach(const struct oki_cuda_api *api, CUcontext context);

/*
 * Register host memory for every context of the process, counted per base for the process: two
 * devices, or two bindings of one, may bring the same arena. What is longer than device->pin_limit
 * goes in pieces of that length, all of them or none; they stay as they are for who comes later.
 */
int oki_cuda_pin(struct oki_device *device, void *base, uint64_t bytes, bool read_only,
		 struct okv_error *err);
void oki_cuda_unpin(void *base);

/* Drivers refuse 2^39 bytes and more. */
#define OKI_CUDA_PIN_LIMIT (1ull << 38)
#define OKI_CUDA_PIN_UNIT (2ull << 20)
/* A length for pin_limit: decimal, with K, M, G or T perhaps; a multiple of OKI_CUDA_PIN_UNIT. */
bool oki_cuda_pin_limit(const char *text, uint64_t *ret_bytes);

/* Addresses [from, to) between which no registration ends and another one begins. */
struct oki_cuda_span {
	uintptr_t from, to;
};
/* The widest one around host. One operation of a copy engine must not leave it. */
void oki_cuda_span(const void *host, struct oki_cuda_span *ret_span);
/* Pinned memory into the device's reach, an entry for each piece, and out of it. */
int oki_cuda_mapping_add(struct oki_device *device, uint8_t *base, uint64_t bytes,
			 struct okv_error *err);
void oki_cuda_mapping_remove(struct oki_device *device, const void *base);
/* Do these bytes of an arena lie in more than one registration? Then one shift of the device's
 * reach does not hold for them. */
bool oki_cuda_crosses_registration(const struct oki_device *device, const uint8_t *host,
				   uint64_t bytes);

/* Is [base, base + bytes) one allocation of this GPU, all mapped? Keeps it in mind. Inside a scope.
 */
int oki_cuda_check_range(struct oki_device *device, uint64_t base, uint64_t bytes,
			 struct okv_error *err);
static inline bool oki_cuda_is_in(const struct oki_cuda_tensor *tensor, const void *at)
{
	return (uintptr_t)at >= tensor->from && (uintptr_t)at < tensor->to;
}
/* The allocation with this address that was found when memory was checked, or NULL. */
const struct oki_cuda_tensor *oki_cuda_tensor_of(const struct oki_device *device, const void *at);

/* ---- what callers bring; as device.h says ---- */

int oki_cuda_check_events(struct oki_device *device, struct CUevent_st *const *events,
			  uint32_t count, struct okv_error *err);
int oki_cuda_fence(struct oki_stream *stream, struct CUstream_st *const *ready, uint32_t count,
		   struct okv_error *err);

/* ---- copy engines ---- */

/* Both pitches of a 2-D copy: CU_DEVICE_ATTRIBUTE_MAX_PITCH of every device so far. */
#define OKI_CUDA_MAX_PITCH 0x7fffffffu

bool oki_cuda_has_batch(const struct oki_cuda_api *api);
/* Where copies go. */
struct oki_cuda_queue {
	CUstream stream;
	enum oki_direction direction;
	bool empty; /* nothing is queued for copy engines: they are to begin soon */
};
/* Queue layers with as few operations as the rows allow. spans: one operation may span so many
 * layers from the first one on, then so many from the next one on, and so forth; NULL: no two.
 * Inside a scope. */
int oki_cuda_copy(const struct oki_device *device, const struct oki_cuda_queue *queue,
		  const struct oki_layer_map *const *maps, uint32_t map_count,
		  const uint32_t *spans, const struct oki_run *runs, uint32_t run_count,
		  struct okv_error *err);

/* What copy engines have to do: operations and entries of batched calls, and rows that touch on
 * both sides count as one. */
struct oki_cuda_work {
	uint64_t bytes, rows, operations;
};
/* Of runs whose operations span layers, in all of these; and of the others, in the first one. */
struct oki_cuda_counts {
	struct oki_cuda_work spanning, single;
};
/* Count that of every step-th run. Operations may span these layers. */
void oki_cuda_count(const struct oki_device *device, enum oki_direction direction,
		    const struct oki_layer_map *const *maps, uint32_t map_count,
		    const struct oki_run *runs, uint32_t run_count, uint32_t step,
		    struct oki_cuda_counts *ret_counts);

/* ---- the kernel ---- */

/* Rows of some runs, as the kernel reads them. */
struct oki_cuda_table {
	const struct oki_gather_row *host; /* NULL: not built */
	CUdeviceptr device;		   /* 0: few rows, they travel with each launch */
	uint32_t count;
	bool joinable; /* all of its runs are: segments may be joined */
};
static_assert(OKI_GATHER_TABLES >= OKV_MAX_GROUPS, "a table for each group");

/* Load the image and make every entry point resident. OKV_E_UNSUPPORTED: no kernel for this GPU. */
int oki_cuda_kernel_load(struct oki_device *device, struct okv_error *err);
/* A stream begins to restore, or is done. */
void oki_cuda_restores(struct oki_stream *stream, bool restores);
void oki_cuda_kernel_unload(struct oki_device *device);

uint64_t oki_cuda_table_rows(const struct oki_run *runs, uint32_t run_count);
/* Write their rows, of which there are row_count; host addresses as the GPU has them. */
void oki_cuda_table_fill(const struct oki_device *device, const struct oki_run *runs,
			 uint32_t run_count, uint64_t row_count, struct oki_gather_row *ret_rows);

/* What one launch may use. */
struct oki_cuda_budget {
	uint32_t sms;	    /* as many blocks */
	double rate;	    /* bytes per ns that all of them write at most; 0: no limit */
	double beside_rate; /* while restores are on their way */
};

struct oki_cuda_launch {
	struct oki_gather gather;
	uint32_t units; /* pieces of all columns */
	uint32_t lanes;
	uint32_t blocks, threads;	/* of each */
	uint32_t end;			/* layers before this one are in it or in earlier ones */
	uint32_t columns[OKI_JOIN_MAX]; /* up to and with its i-th layer */
	const struct oki_cuda_table *tables[OKI_GATHER_TABLES];
	uint32_t table_count, few_count;
};

/*
 * A launch for the layers from `first` on, tables[i] with the rows of layer i, as many as there is
 * room for: at least one. Settles how rows are cut, the lanes per group, the blocks and their pace.
 */
void oki_cuda_launch_fill(const struct oki_cuda_table *const *tables, enum oki_direction direction,
			  const struct oki_layer_map *const *maps, uint32_t first,
			  uint32_t map_count, const struct oki_cuda_budget *budget,
			  struct oki_cuda_launch *ret_launch);
CUresult oki_cuda_launch(struct oki_device *device, CUstream stream,
			 struct oki_cuda_launch *launch);
/* What a kernel of this direction may use now. */
struct oki_cuda_budget oki_cuda_budget(const struct oki_device *device,
				       enum oki_direction direction);
/*
 * Queue the kernel for layers, tables[i] with the rows of layer i, with a signal at each end of a
 * stretch: ends[i] says whether one ends after layer i. Every launch's last layer is such an end
 * too. ends NULL: no signals. Room for map_count signals. Inside a scope.
 */
CUresult oki_cuda_kernel_copy(struct oki_stream *stream, enum oki_direction direction,
			      const struct oki_cuda_table *const *tables,
			      const struct oki_layer_map *const *maps, const bool *ends,
			      uint32_t map_count, struct oki_cuda_signal *ret_signals,
			      uint32_t *ret_signal_count);

/* What is queued from now on in one of its streams, or a caller's, follows what is in another.
 * Inside a scope. */
CUresult oki_cuda_follow(struct oki_stream *stream, CUstream later, CUstream earlier);
/* What is queued from now on in stream->stream follows all of the other two. Inside a scope. */
CUresult oki_cuda_join(struct oki_stream *stream);
/* The event follows all that was queued, in whichever of the streams. Inside a scope. */
CUresult oki_cuda_record(struct oki_stream *stream, CUevent event);

/* ---- how busy the SMs are ---- */

void oki_cuda_probe_init(struct oki_device *device);
/* False: its kernel has not ended, and the module must stay. */
bool oki_cuda_probe_fini(struct oki_device *device);
/* Where the worker has time: launch one or ask for its end, if it is time for that. Inside a
 * scope. */
void oki_cuda_probe_look(struct oki_device *device, uint64_t now_ns);
/* How long a kernel may wait for an SM, in ns; 0: not at all. By what the last looks found. */
double oki_cuda_probe_wait(const struct oki_cuda_probe *probe);

/* ---- choosing ---- */

/* What else goes on. */
struct oki_cuda_beside {
	bool batch;	   /* the driver has batched calls */
	double wait_ns;	   /* a kernel may wait so long for an SM; 0: SMs are free */
	bool engines_busy; /* they have copies of other streams to do first */
};
/* Should copy engines take it, and not the kernel? */
bool oki_cuda_suits_engines(const struct oki_cuda_work *work, const struct oki_cuda_beside *beside);

/* Some runs of one operation, worked out with its first layer. */
struct oki_cuda_plan;

/* The stream's plan for these runs, or NULL: no memory. */
struct oki_cuda_plan *oki_cuda_plan_get(struct oki_stream *stream, const struct oki_run *runs,
					uint32_t run_count);
uint64_t oki_cuda_plan_rows(const struct oki_cuda_plan *plan);
/* Forget all plans; nothing queued uses them any more. */
void oki_cuda_plans_forget(struct oki_stream *stream);
/* Add what copy engines have to do for layers of the plan, of which they may take the first
 * `together` at once. By some of its runs: about right. */
void oki_cuda_plan_work(const struct oki_stream *stream, enum oki_direction direction,
			const struct oki_cuda_plan *plan, const struct oki_layer_map *const *maps,
			uint32_t map_count, uint32_t together, struct oki_cuda_work *sum);
/* So many layers from the first one on lie in one allocation, at one distance: one operation may
 * span them. */
uint32_t oki_cuda_stackable(const struct oki_device *device,
			    const struct oki_layer_map *const *maps, uint32_t map_count);
/* Rows for the kernel. Up to `few` of them need no memory of the GPU's. */
CUresult oki_cuda_plan_table(struct oki_stream *stream, struct oki_cuda_plan *plan, uint32_t few,
			     const struct oki_cuda_table **ret_table);
/* Does a block, up to these layers, lie in two pieces of an arena? The GPU may see those at
 * unrelated places, and the kernel is told one. */
bool oki_cuda_plan_crosses_registration(const struct oki_device *device, struct oki_cuda_plan *plan,
					const struct oki_layer_map *const *maps,
					uint32_t map_count);

/* Queue layers by the ways that suit them, as device.h says. Inside a scope. */
int oki_cuda_submit(struct oki_stream *stream, enum oki_direction direction,
		    const struct oki_layer_copy *layers, uint32_t layer_count,
		    struct okv_error *err);

/* Room for tables, before the first copy needs it, and its end. */
CUresult oki_cuda_chunks_init(struct oki_stream *stream);
void oki_cuda_chunks_free(struct oki_stream *stream);
void oki_cuda_chunks_empty(struct oki_stream *stream);
CUresult oki_cuda_chunk_take(struct oki_stream *stream, uint64_t bytes, void **ret_host,
			     CUdeviceptr *ret_device);

/* Of a link whose rate nobody measured: PCIe 4, and no link is taken for slower, as one that was
 * found to be had others on it at that moment. */
#define OKI_CUDA_LEAST_LINK 24.0
/* Measure device->link, or take what this process measured before. After 40 ms no further copy of a
 * direction is begun. */
void oki_cuda_link_measure(struct oki_device *device);

#endif
