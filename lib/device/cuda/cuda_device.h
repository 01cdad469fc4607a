/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Between the files of the CUDA device. */
#ifndef OKI_DEVICE_CUDA_DEVICE_H
#define OKI_DEVICE_CUDA_DEVICE_H

#include <assert.h>
#include <stdatomic.h>

#include "device/cuda/cuda_api.h"
#include "device/device.h"
#include "kernels/gather_copy.h"

/* Most tiles of one launch, which counts them in 32 bits. With at most OKI_CUDA_ROWS_MAX rows no
 * launch has more. */
#define OKI_CUDA_UNITS_MAX 0x7fffffffu
#define OKI_CUDA_ROWS_MAX (OKI_CUDA_UNITS_MAX / OKI_GATHER_COLUMNS)
/* In a restore of up to so many bytes each lane has as many loads in flight as it can. */
#define OKI_CUDA_SHORT_BYTES (4u << 20)

/* One registration of host memory, and what to add to its addresses to get the GPU's. */
struct oki_cuda_mapping {
	uint8_t *base;
	uint64_t bytes;
	uint64_t device_offset;
	uint32_t registrations; /* of the arena that starts here, from this entry on; or 0 */
};

/* An allocation that pages lie in. If it is not remembered, copies are only slower. */
#define OKI_CUDA_TENSORS 64u
struct oki_cuda_tensor {
	uint64_t from, to;
};

/* The probe: a kernel that does nothing, launched to see whether it waits for an SM. Only the
 * worker launches it and reads the results. */
#define OKI_CUDA_LOOKS 8u
#define OKI_CUDA_LOOKS_HELD 2u /* SMs are held if so many of the last probes waited */
struct oki_cuda_probe {
	CUstream stream;
	CUevent from, to; /* with timing */
	bool works;
	bool out;  /* launched, and its end is not yet seen */
	bool lost; /* launched, and its end will never be seen */
	uint64_t launched_ns, asked_ns, call_ns;
	uint32_t looks;		      /* probes that ended so far */
	double waits[OKI_CUDA_LOOKS]; /* of the last probes; 0: it found an SM at once */
};

/* Validated events of callers, by a hash of their handles. An event that is not remembered is
 * validated again; for one that was destroyed since, recording fails. */
#define OKI_CUDA_EVENT_BITS 10u

struct oki_device {
	const struct oki_cuda_api *api;
	int32_t index;
	CUdevice device;
	CUcontext context; /* the primary one, retained */
	uint32_t path;	   /* enum okv_copy_path, never KERNEL without a kernel */
	uint32_t sms;
	int priority; /* of the library's streams: the highest */
	CUmodule module;
	CUfunction gather[3];		   /* for 8, 16 and 32 lanes; NULL: no kernel */
	double link[2];			   /* by direction: bytes per ns of one long copy */
	struct oki_cuda_mapping *mappings; /* owned; changed only while nothing is copied */
	uint32_t mapping_count;
	bool arena_split;   /* some arena in mappings has several registrations */
	uint64_t pin_limit; /* longest registration; a longer arena has several */
	struct oki_cuda_tensor tensors[OKI_CUDA_TENSORS]; /* changed only when mappings may be */
	uint32_t tensor_count;
	_Atomic uintptr_t events[1u << OKI_CUDA_EVENT_BITS];
	_Atomic uint64_t copying[2]; /* by direction: bytes that streams queued for copy engines */
	/* The number of streams that restore: in memory mapped for the GPU, else own_restores. */
	_Atomic uint32_t *restores;
	CUdeviceptr restores_at; /* its address on the GPU; 0: not mapped */
	_Atomic uint32_t own_restores;
	struct oki_cuda_probe probe;
	_Atomic bool no_value_waits; /* the driver refused cuStreamWaitValue32 */
};

/* Memory for tables: filled in pinned host memory, read by the kernel in GPU memory. */
struct oki_cuda_chunk {
	struct oki_cuda_chunk *next;
	uint8_t *host;
	CUdeviceptr device;
	uint64_t bytes, used;
	uint64_t kept; /* first bytes that are never reused */
};

/*
 * Counters of a stream's kernels. [0] counts lane groups that have begun their last tiles. Even and
 * odd kernels have their own set of the others: two even ones never overlap, nor do two odd ones,
 * so that only one kernel at a time uses a set.
 */
#define OKI_CUDA_SIGNALS OKI_JOIN_MAX
#define OKI_CUDA_SIGNAL(kernel) (1u + (kernel) % 2 * OKI_CUDA_SIGNALS)
#define OKI_CUDA_TICKETS(kernel) (1u + 2 * OKI_CUDA_SIGNALS + (kernel) % 2)
#define OKI_CUDA_COUNTERS (1u + 2 * OKI_CUDA_SIGNALS + 2)
/* After the counters: whether restores are in flight, and when even and odd kernels are expected to
 * end, which each writes as it begins. */
#define OKI_CUDA_BESIDE OKI_CUDA_COUNTERS
#define OKI_CUDA_UNTIL(kernel) (OKI_CUDA_COUNTERS + 1 + 2 * ((kernel) % 2))
#define OKI_CUDA_COUNTER_BYTES ((OKI_CUDA_COUNTERS + 1 + 2 * 2) * sizeof(uint32_t))
static_assert((OKI_CUDA_COUNTERS + 1) % 2 == 0, "64-bit words");

/* Of a kernel: the layers before `end` are copied once the counter reaches count. */
struct oki_cuda_signal {
	uint32_t end;
	uint32_t counter;
	uint32_t count;
};

/* Layers that an earlier copy call launched but has not yet returned: the next calls only queue
 * their events. */
struct oki_cuda_pending {
	struct oki_cuda_signal signals[OKI_JOIN_MAX];
	uint32_t count;	 /* 0: nothing is pending */
	uint32_t next;	 /* the first signal that no event follows yet */
	uint32_t layers; /* returned to the caller so far */
};

/*
 * The three CUDA streams of an operation:
 *
 * stream  Fences, tables, copies by engines, every other kernel, and marks while the other two are
 *         empty. The other two start after a point in it (fork) or wait for its kernels.
 * side    Layer events of a kernel, each behind a wait for the layer's counter, so that one kernel
 *         copies many layers and each layer is ready early; and marks behind everything, for which
 *         no kernel needs to wait.
 * lane    The other kernels. A kernel starts when the one before it has begun its last tiles, or at
 *         once if that one is short, so that a model's blocks never take the SMs between the two.
 *         The kernel before that must have ended, so that three never overlap.
 *
 * A GPU has few hardware queues for the streams of a process, 8 by default, and a stream that waits
 * blocks its queue. So an operation uses three at most.
 */
struct oki_stream {
	struct oki_device *device;
	CUstream stream;
	CUstream side, lane;
	CUevent point; /* recorded where another stream is to follow; reused each time */
	CUevent fork;
	bool side_open, lane_open;  /* has work that stream does not wait for */
	bool side_last;		    /* side waits for all work of the other two */
	bool side_counts;	    /* side follows the copy that initialised the counters */
	uint32_t kernels;	    /* since fork was recorded; 0: the next kernel records it */
	CUdeviceptr counters;	    /* 0: no counters; all kernels in stream, one a stretch */
	CUdeviceptr counter_memory; /* 0: none */
	uint32_t counts[OKI_CUDA_COUNTERS]; /* values once all kernels launched so far end */
	bool gate;	    /* the next kernel waits for counts[0], as the last one is not short */
	uint32_t stretches; /* since it was recycled */
	struct oki_cuda_pending pending;
	bool chosen; /* by_kernel is valid until the piece ends or other runs come */
	bool by_kernel;
	/* Since it was recycled: bytes queued for engines, by direction, and whether it restores.
	 */
	uint64_t copying[2];
	bool restores;
	struct oki_cuda_chunk *chunks;
	struct oki_cuda_plan *plans; /* of this stream's runs until it is recycled */
};

/*
 * Every driver call is between enter and leave, which restore the caller's current context. In
 * between the thread's capture mode is relaxed: otherwise the library's queries would break the
 * capture of another thread that captures a graph in global mode.
 */
struct oki_cuda_scope {
	const struct oki_cuda_api *api; /* NULL: the thread is attached, nothing to undo */
	CUstreamCaptureMode mode;
};

CUresult oki_cuda_enter(const struct oki_cuda_api *api, CUcontext context,
			struct oki_cuda_scope *ret_scope);
void oki_cuda_leave(struct oki_cuda_scope *scope);
/* The calling thread belongs to the library: it keeps the context, so that enter and leave do
 * nothing on it. */
void oki_cuda_attach(const struct oki_cuda_api *api, CUcontext context);

/*
 * Register host memory for every context of the process. Counted per base and process: two devices,
 * or two bindings of one, may pin the same arena. An arena longer than device->pin_limit gets
 * several registrations of that length, all or none; later callers share them, whatever their
 * limit.
 */
int oki_cuda_pin(struct oki_device *device, void *base, uint64_t bytes, bool read_only,
		 struct okv_error *err);
void oki_cuda_unpin(void *base);

/* Drivers refuse 2^39 bytes and more. */
#define OKI_CUDA_PIN_LIMIT (1ull << 38)
#define OKI_CUDA_PIN_UNIT (2ull << 20)
/* Parse a length for pin_limit: decimal, optionally with K, M, G or T; a multiple of
 * OKI_CUDA_PIN_UNIT, not zero. */
bool oki_cuda_pin_limit(const char *text, uint64_t *ret_bytes);

/* Addresses [from, to) with no boundary between two registrations inside. */
struct oki_cuda_span {
	uintptr_t from, to;
};
/* The widest span around host. One operation of a copy engine must stay inside it. */
void oki_cuda_span(const void *host, struct oki_cuda_span *ret_span);
/* Add pinned memory to device->mappings, an entry for each registration, and remove it. */
int oki_cuda_mapping_add(struct oki_device *device, uint8_t *base, uint64_t bytes,
			 struct okv_error *err);
void oki_cuda_mapping_remove(struct oki_device *device, const void *base);
/* Do these bytes of an arena lie in more than one registration? Then no single offset is right for
 * all of them. */
bool oki_cuda_crosses_registration(const struct oki_device *device, const uint8_t *host,
				   uint64_t bytes);

/* Does [base, base + bytes) lie in one allocation of this GPU, all mapped? Remembers the allocation
 * for oki_cuda_tensor_of(). Inside a scope. */
int oki_cuda_check_range(struct oki_device *device, uint64_t base, uint64_t bytes,
			 struct okv_error *err);
static inline bool oki_cuda_is_in(const struct oki_cuda_tensor *tensor, const void *at)
{
	return (uintptr_t)at >= tensor->from && (uintptr_t)at < tensor->to;
}
/* The remembered allocation that contains this address, or NULL. */
const struct oki_cuda_tensor *oki_cuda_tensor_of(const struct oki_device *device, const void *at);

/* ---- events and streams of callers; as device.h says ---- */

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
	bool empty; /* nothing is queued for copy engines yet: start with short calls */
};
/* Queue layers with as few operations as the rows allow. One operation may span the first spans[0]
 * layers, then the next spans[spans[0]] ones, and so forth; NULL: one layer each. Inside a scope.
 */
int oki_cuda_copy(const struct oki_device *device, const struct oki_cuda_queue *queue,
		  const struct oki_layer_map *const *maps, uint32_t map_count,
		  const uint32_t *spans, const struct oki_run *runs, uint32_t run_count,
		  struct okv_error *err);

/* The work of copy engines. Operations include entries of batched calls; rows that are adjacent on
 * both sides count as one. */
struct oki_cuda_work {
	uint64_t bytes, rows, operations;
};
/* spanning: runs whose operations span layers, for all these layers. single: the other runs, for
 * the first layer only. */
struct oki_cuda_counts {
	struct oki_cuda_work spanning, single;
};
/* Count the work of every step-th run. Operations may span these layers. */
void oki_cuda_count(const struct oki_device *device, enum oki_direction direction,
		    const struct oki_layer_map *const *maps, uint32_t map_count,
		    const struct oki_run *runs, uint32_t run_count, uint32_t step,
		    struct oki_cuda_counts *ret_counts);

/* ---- the kernel ---- */

/* Entries for the pages of some runs, as the kernel reads them. */
struct oki_cuda_table {
	const struct oki_gather_row *host; /* NULL: not built */
	CUdeviceptr device;		   /* 0: few entries, passed as launch parameters */
	uint32_t count;
	bool joinable; /* all runs are joinable, so segments may be joined */
};
static_assert(OKI_GATHER_TABLES >= OKV_MAX_GROUPS, "a table for each group");

/* Load the image and make every entry point resident. OKV_E_UNSUPPORTED: no kernel for this GPU. */
int oki_cuda_kernel_load(struct oki_device *device, struct okv_error *err);
/* Count the stream as one that restores, or no longer. */
void oki_cuda_restores(struct oki_stream *stream, bool restores);
void oki_cuda_kernel_unload(struct oki_device *device);

uint64_t oki_cuda_table_rows(const struct oki_run *runs, uint32_t run_count);
/* Write the runs' row_count entries, with host addresses as the GPU sees them. */
void oki_cuda_table_fill(const struct oki_device *device, const struct oki_run *runs,
			 uint32_t run_count, uint64_t row_count, struct oki_gather_row *ret_rows);

/* What one launch may use. */
struct oki_cuda_budget {
	uint32_t sms;	    /* at most as many blocks */
	double rate;	    /* bytes per ns that all of them write at most; 0: no limit */
	double beside_rate; /* the same, while restores are in flight */
};

struct oki_cuda_launch {
	struct oki_gather gather;
	uint32_t units;			/* tiles of all columns */
	uint32_t lanes;			/* per lane group */
	uint32_t blocks, threads;	/* threads per block */
	uint32_t end;			/* layers before this one are in this or earlier launches */
	uint32_t columns[OKI_JOIN_MAX]; /* columns of its layers 0 to i */
	const struct oki_cuda_table *tables[OKI_GATHER_TABLES];
	uint32_t table_count, few_count;
};

/*
 * Prepare a launch for as many layers from `first` on as there is room for, at least one; tables[i]
 * has the entries of layer i. Decides the tile size, lanes per lane group, blocks and their pace.
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
 * Queue the kernel for layers; tables[i] has the entries of layer i. Each end of a stretch gets a
 * signal: ends[i] says whether one ends after layer i. Each launch's last layer gets one too. ends
 * NULL: no signals. ret_signals has room for map_count. Inside a scope.
 */
CUresult oki_cuda_kernel_copy(struct oki_stream *stream, enum oki_direction direction,
			      const struct oki_cuda_table *const *tables,
			      const struct oki_layer_map *const *maps, const bool *ends,
			      uint32_t map_count, struct oki_cuda_signal *ret_signals,
			      uint32_t *ret_signal_count);

/* Future work of `later` follows what is queued in `earlier`; each is one of the operation's
 * streams or a caller's. Inside a scope. */
CUresult oki_cuda_follow(struct oki_stream *stream, CUstream later, CUstream earlier);
/* Future work of stream->stream follows what is queued in side and lane. Inside a scope. */
CUresult oki_cuda_join(struct oki_stream *stream);
/* Record the event behind everything queued in all three streams. Inside a scope. */
CUresult oki_cuda_record(struct oki_stream *stream, CUevent event);

/* ---- how busy the SMs are ---- */

void oki_cuda_probe_init(struct oki_device *device);
/* False: its kernel may not have ended, so the module must stay loaded. */
bool oki_cuda_probe_fini(struct oki_device *device);
/* Launch a probe or check whether it has ended, if that is due. The worker calls this while it
 * polls. Inside a scope. */
void oki_cuda_probe_look(struct oki_device *device, uint64_t now_ns);
/* How long a kernel may wait for an SM, in ns, by the last probes; 0: not at all. */
double oki_cuda_probe_wait(const struct oki_cuda_probe *probe);

/* ---- the choice of a copy path ---- */

/* The state of the driver and the GPU. */
struct oki_cuda_beside {
	bool batch;	   /* the driver has batched calls */
	double wait_ns;	   /* how long a kernel may wait for an SM; 0: SMs are free */
	bool engines_busy; /* copy engines have copies of other streams to do first */
};
/* Are copy engines the better copy path for this work? */
bool oki_cuda_suits_engines(const struct oki_cuda_work *work, const struct oki_cuda_beside *beside);

/* What is prepared for some runs of one operation, with its first layer. */
struct oki_cuda_plan;

/* The stream's prepared runs, made if missing. NULL: no memory. */
struct oki_cuda_plan *oki_cuda_plan_get(struct oki_stream *stream, const struct oki_run *runs,
					uint32_t run_count);
uint64_t oki_cuda_plan_rows(const struct oki_cuda_plan *plan);
/* Forget all prepared runs and reset the stream for another operation. No queued work may use them
 * any more. */
void oki_cuda_plans_forget(struct oki_stream *stream);
/* Add to *sum the work of copy engines for layers of the plan, of which they may take the first
 * `together` at once. An estimate from some of the runs. */
void oki_cuda_plan_work(const struct oki_stream *stream, enum oki_direction direction,
			const struct oki_cuda_plan *plan, const struct oki_layer_map *const *maps,
			uint32_t map_count, uint32_t together, struct oki_cuda_work *sum);
/* How many layers, from the first one on, lie in one allocation at a constant distance, so that one
 * operation may span them. */
uint32_t oki_cuda_stackable(const struct oki_device *device,
			    const struct oki_layer_map *const *maps, uint32_t map_count);
/* The kernel's table of the plan. Up to `few` entries need no GPU memory. */
CUresult oki_cuda_plan_table(struct oki_stream *stream, struct oki_cuda_plan *plan, uint32_t few,
			     const struct oki_cuda_table **ret_table);
/* Does some block, up to the end of these layers, lie in two registrations of an arena? The GPU may
 * see these at unrelated addresses, and the kernel gets one address for a block. */
bool oki_cuda_plan_crosses_registration(const struct oki_device *device, struct oki_cuda_plan *plan,
					const struct oki_layer_map *const *maps,
					uint32_t map_count);

/* Queue layers by the copy path that suits them, as device.h says. Inside a scope. */
int oki_cuda_submit(struct oki_stream *stream, enum oki_direction direction,
		    const struct oki_layer_copy *layers, uint32_t layer_count,
		    struct okv_error *err);

/* Memory for tables. init allocates some before the first copy needs it, and the counters; empty
 * makes it reusable. */
CUresult oki_cuda_chunks_init(struct oki_stream *stream);
void oki_cuda_chunks_free(struct oki_stream *stream);
void oki_cuda_chunks_empty(struct oki_stream *stream);
CUresult oki_cuda_chunk_take(struct oki_stream *stream, uint64_t bytes, void **ret_host,
			     CUdeviceptr *ret_device);

/* The rate of PCIe 4 in bytes per ns, for a link that is not measured. It is also the least for one
 * that is: a link that seems slower was shared at that moment. */
#define OKI_CUDA_LEAST_LINK 24.0
/* Measure device->link, or use what this process measured before. A direction starts no further
 * pair of copies after 40 ms. */
void oki_cuda_link_measure(struct oki_device *device);

#endif
