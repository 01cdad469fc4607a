/* SPDX-License-Identifier: Apache-2.0 */
/* What is cached (namespace and schema) and where this rank keeps it (binding). */
#ifndef ORBITKV_BINDING_H
#define ORBITKV_BINDING_H

#include <orbitkv/engine.h>

#ifdef __cplusplus
extern "C" {
#endif

struct okv_namespace;
struct okv_binding;

/* CUstream and cudaStream_t, CUevent and cudaEvent_t are pointers to these. */
struct CUstream_st;
struct CUevent_st;

#define OKV_MAX_GROUPS 8
#define OKV_MAX_SEGMENTS 8
#define OKV_MAX_LAYERS 1024 /* of one schema, all groups together */
#define OKV_MAX_RANK_SLOTS 64
#define OKV_MAX_KEY_BYTES 32
#define OKV_MAX_BLOCKS 4096 /* per group of one lookup or operation */

enum okv_group_kind {
	OKV_GROUP_FULL = 1,   /* usable: a leading run of blocks */
	OKV_GROUP_WINDOW = 2, /* usable: the blocks that cover the last window_tokens */
	OKV_GROUP_STATE = 3,  /* usable: the last block alone (recurrent state) */
};

/** One layer of a schema: what one block holds of it on one rank. */
struct okv_layer_schema {
	uint32_t order;		/* place in the model's consumption order, unique in the schema */
	uint32_t segment_count; /* 1 to OKV_MAX_SEGMENTS; K and V are two */
	uint64_t segment_bytes[OKV_MAX_SEGMENTS]; /* per block, all its tokens; > 0 */
};

/** Layers whose blocks are found, kept and dropped together: what one block holds of each. */
struct okv_group_schema {
	uint32_t kind;		/* enum okv_group_kind */
	uint32_t block_tokens;	/* tokens per block; > 0 */
	uint32_t window_tokens; /* OKV_GROUP_WINDOW only, > 0; else 0 */
	uint32_t layer_count;
	/* The order inside a segment, "NHD", "HND/fp8", …: equal sizes must not match unless the
	 * tags do. 1 to 31 characters. */
	const char *layout_tag;
	const struct okv_layer_schema *layers; /* layer_count; ascending order */
};

/** One more field of the cache identity. */
struct okv_identity_field {
	const char *name; /* 1 to 63 characters, unique */
	const void *value;
	uint32_t value_bytes; /* up to 4,096 */
};

/**
 * The cache identity. Every field is tagged and length-prefixed before it is compared, so that
 * salt "X" and adapter "X" differ. NULL means absent, which differs from "".
 * Limits: a string has up to 4,096 bytes, there are up to 256 extra fields, block_tokens is at most
 * UINT32_MAX / OKV_MAX_BLOCKS, a block of one group on one rank is smaller than 4 GiB, and identity
 * and schema together fit one message of 128 KiB.
 */
struct okv_namespace_options {
	uint32_t size;
	uint32_t rank_slots;	 /* tensor-parallel ranks that each store a part; default 1 */
	const char *model;	 /* required */
	const char *revision;	 /* weights revision */
	const char *dtype;	 /* of the cached values */
	const char *adapter;	 /* LoRA or similar */
	const char *salt;	 /* tenant separation */
	uint32_t pipeline_stage; /* and how many there are; default 0 of 1 */
	uint32_t pipeline_stages;
	uint32_t field_count;
	uint32_t group_count;
	const struct okv_identity_field *fields;
	const struct okv_group_schema *groups;
};

/** Fill in size and every default: one rank slot, stage 0 of 1, all else absent. */
OKV_EXPORT void okv_namespace_options_init(struct okv_namespace_options *opts);

/**
 * Open (or create) the namespace with this identity and schema. Identities that differ in any
 * field, and schemas that differ in any number or tag, are different namespaces.
 *
 * Owns     copies opts; returns owned, okv_namespace_close().
 * Blocks   for one round trip.   Threads any.
 */
OKV_EXPORT int okv_namespace_open(struct okv_engine *engine,
				  const struct okv_namespace_options *opts,
				  struct okv_namespace **ret_ns, struct okv_error *err);
/** NULL is allowed. Bindings and leases of it keep it alive. */
OKV_EXPORT void okv_namespace_close(struct okv_namespace *ns);
/** Bytes one block of the group takes on one rank; 0 for an unknown group. */
OKV_EXPORT uint64_t okv_namespace_block_bytes(const struct okv_namespace *ns, uint32_t group);

enum okv_device_kind {
	OKV_DEVICE_HOST = 1,
	OKV_DEVICE_CUDA = 2, /* through the driver API loaded at run time */
};

/** Who moves the bytes of a CUDA binding. */
enum okv_copy_path {
	OKV_COPY_AUTO = 0,   /* what suits a copy, by its rows and by what runs beside */
	OKV_COPY_DMA = 1,    /* copy engines alone: no SM is ever used */
	OKV_COPY_KERNEL = 2, /* a kernel on copy_sms SMs alone */
};

/**
 * Keeps a caller's object alive: retained once when the library takes it, released once, after
 * the last copy that may touch it. Both may be NULL together. Called from any thread, the library's
 * own among them: leave its current CUDA context as it was.
 */
struct okv_owner {
	void *object;
	void (*retain)(void *object);
	void (*release)(void *object);
};

/**
 * One layer of this rank's KV tensors. Page p's segment s lies at
 * base + p * page_stride + segment_offset[s], segment_bytes[s] long; nothing else is ever
 * touched. The span (page_count - 1) * page_stride + max(offset + bytes) must be within length.
 * Pages per block = schema segment bytes / segment_bytes, the same for a whole group.
 */
struct okv_layer {
	void *base;
	uint64_t length; /* bytes from base that belong to the tensor; > 0 */
	uint64_t page_stride;
	uint32_t page_count;
	uint32_t segment_count; /* as in the schema */
	uint64_t segment_offset[OKV_MAX_SEGMENTS];
	uint64_t segment_bytes[OKV_MAX_SEGMENTS]; /* per page */
	struct okv_owner owner;
};

/** What okv_binding_register() is told of one rank's tensors; borrowed during the call. */
struct okv_binding_options {
	uint32_t size;
	uint32_t device;      /* enum okv_device_kind */
	int32_t device_index; /* CUDA ordinal; host: 0 */
	uint32_t rank_slot;
	uint32_t layer_count;  /* of all groups, group after group, each in schema order */
	uint32_t copy_threads; /* host device; 0: one per CPU, at most 8 */
	const struct okv_layer *layers;
	/* CUDA: enum okv_copy_path, and SMs that one copy kernel may use (0: 4, at most 64). On
	 * however many, a publish writes 0.93 of what a copy engine moves at most, since the
	 * launches of a model wait on a full link, and 0.74 while this binding restores. The
	 * environment's ORBITKV_COPY=auto|dma|kernel and ORBITKV_COPY_SMS=N go before both. */
	uint32_t copy_path;
	uint32_t copy_sms;
};

/** The host device, index 0, rank slot 0. */
OKV_EXPORT void okv_binding_options_init(struct okv_binding_options *opts);

/**
 * Register this rank's tensors. All geometry is proven here: no two pages, layers or segments
 * overlap, every page lies inside its tensor, sizes agree with the schema. Arenas are imported
 * and pinned here. Layers of one binding, and bindings of one engine, may interleave inside one
 * allocation (fused and cross-layer tensors) but never share a byte. Another engine of the process
 * does not know of them: register the tensors there only when nothing of the first one runs.
 * A block's pages lie one after another in each segment of it, so engines with pages of different
 * lengths share blocks as long as a block's tokens and segment bytes are the same.
 *
 * Owns     shares the layers' memory through their owners until unregistered; returns owned. The
 *          memory stays mapped until then, or until okv_binding_quiesce() returned 0: copies to
 *          pages of a host binding that are gone are a fault of the process.
 * Errors   OKV_E_INVAL, OKV_E_EXISTS (bytes registered already), OKV_E_UNSUPPORTED (no device).
 * Blocks   while arenas are pinned.   Threads any. The current CUDA context is left as it was.
 */
OKV_EXPORT int okv_binding_register(struct okv_namespace *ns,
				    const struct okv_binding_options *opts,
				    struct okv_binding **ret_binding, struct okv_error *err);

/**
 * Refuse new operations, wait until all of this binding drained, release the owners, free.
 * Operations not granted within the engine's connect_timeout_ms end as OKV_E_CANCELLED; a Manager
 * that hangs is then given as long again to answer.
 * NULL is allowed. Operation handles stay valid to query and release. Any number of threads may
 * call okv_binding_quiesce() beside it, but only one may unregister.
 */
OKV_EXPORT void okv_binding_unregister(struct okv_binding *binding);

/**
 * Refuse new operations (OKV_E_CLOSED) and wait until started ones drained: after 0 no copy
 * touches the pages until okv_binding_resume(). timeout_ms < 0 waits without limit; after
 * OKV_E_TIMEOUT the binding still refuses and may still be copying. The results of those operations
 * may be told a moment after it returned: okv_op_wait().
 *
 * Until it is resumed the tensors may be unmapped. The binding knows addresses, not what is mapped
 * there: it refuses until then whatever was mapped meanwhile, for only the caller can tell that it
 * is the tensors again.
 */
OKV_EXPORT int okv_binding_quiesce(struct okv_binding *binding, int timeout_ms);
/**
 * Accept operations again. The caller promises that every layer is mapped as it was registered:
 * same addresses and lengths, on the same device; the bytes may be others. If anything else may be
 * mapped there, unregister and register instead.
 *
 * Errors   OKV_E_INVAL: a layer is no mapped memory of the device (as at registration), and the
 *          binding goes on refusing; OKV_E_CLOSED: unregistered or the engine is closed.
 */
OKV_EXPORT int okv_binding_resume(struct okv_binding *binding);

#ifdef __cplusplus
}
#endif
#endif
