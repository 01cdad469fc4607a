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
#define OKV_MAX_SEGMENTS 64
#define OKV_MAX_SCHEMA_SEGMENTS 8192 /* of one schema, all layers together */
#define OKV_MAX_LAYERS 1024	     /* of one schema, all groups together */
#define OKV_MAX_RANK_SLOTS 64
#define OKV_MAX_KEY_BYTES 32
#define OKV_MAX_BLOCKS 4096    /* per group of a lookup, per stretch of a publish or restore */
#define OKV_MAX_STRETCHES 1024 /* of one publish or restore */
#define OKV_MAX_OPERATION_BLOCKS 32768u /* of one publish or restore, all stretches together */

enum okv_group_kind {
	/* Which blocks a usable prefix needs of a group of this kind: */
	OKV_GROUP_FULL = 1,   /* all blocks from the start of the sequence */
	OKV_GROUP_WINDOW = 2, /* the blocks that cover the last window_tokens of the prefix */
	OKV_GROUP_STATE = 3,  /* the last block only (recurrent state) */
};

/** One layer of a schema: what one block holds of it on one rank. */
struct okv_layer_schema {
	uint32_t order;		/* place in the consumption order; unique in the schema */
	uint32_t segment_count; /* 1 to OKV_MAX_SEGMENTS; K and V are two segments */
	/* Bytes of each segment in one block, for all tokens of the block; > 0. */
	uint64_t segment_bytes[OKV_MAX_SEGMENTS];
};

/** A group: layers whose blocks are found, kept and evicted together. */
struct okv_group_schema {
	uint32_t kind;		/* enum okv_group_kind */
	uint32_t block_tokens;	/* tokens per block; 1 to UINT32_MAX / OKV_MAX_BLOCKS */
	uint32_t window_tokens; /* tokens; > 0 for OKV_GROUP_WINDOW, else 0 */
	uint32_t layer_count;	/* 1 or more; OKV_MAX_LAYERS in all groups together */
	/* Name for the order of bytes inside a segment: "NHD", "HND/fp8", …. 1 to 31 characters.
	 * Schemas with equal sizes and different tags do not match. */
	const char *layout_tag;
	const struct okv_layer_schema *layers; /* layer_count entries, ascending by `order` */
};

/** One more field of the cache identity. */
struct okv_identity_field {
	const char *name;     /* 1 to 63 characters, unique */
	const void *value;    /* value_bytes long; may be NULL when that is 0 */
	uint32_t value_bytes; /* 0 to 4,096 */
};

/**
 * The cache identity and the schema. Every field is compared with its name and its length, so salt
 * "X" and adapter "X" differ. A NULL string is absent, which differs from "".
 * A block of one group on one rank must be smaller than 4 GiB. Identity and schema together must
 * fit one message of 128 KiB.
 */
struct okv_namespace_options {
	uint32_t size;	     /* set by the _init call */
	uint32_t rank_slots; /* tensor-parallel ranks; 1 to OKV_MAX_RANK_SLOTS, default 1 */
	/* Each string has at most 4,096 bytes. model is required; the others default to NULL. */
	const char *model;
	const char *revision;	  /* of the weights */
	const char *dtype;	  /* of the cached values */
	const char *adapter;	  /* LoRA or similar */
	const char *salt;	  /* keeps tenants apart */
	uint32_t pipeline_stage;  /* of this engine, below pipeline_stages; default 0 */
	uint32_t pipeline_stages; /* default 1 */
	uint32_t field_count;	  /* 0 to 256; default 0 */
	uint32_t group_count;	  /* 1 to OKV_MAX_GROUPS */
	const struct okv_identity_field *fields; /* field_count entries; extra identity fields */
	const struct okv_group_schema *groups;	 /* group_count entries */
};

/** Set size and every default: one rank slot, stage 0 of 1, everything else absent. */
OKV_EXPORT void okv_namespace_options_init(struct okv_namespace_options *opts);

/**
 * Open the namespace with this identity and schema; the Manager creates it if it is new. Identities
 * that differ in any field, and schemas that differ in any number or tag, are different namespaces.
 *
 * Owns     copies opts. Returns an owned handle; release it with okv_namespace_close().
 * Blocks   for one answer of the Manager, up to connect_timeout_ms.   Threads any.
 */
OKV_EXPORT int okv_namespace_open(struct okv_engine *engine,
				  const struct okv_namespace_options *opts,
				  struct okv_namespace **ret_ns, struct okv_error *err);
/** Release the handle. The namespace's bindings and leases keep working. NULL is allowed. */
OKV_EXPORT void okv_namespace_close(struct okv_namespace *ns);
/**
 * Forget what is stored under the namespace, for all sessions: for weights that changed in place.
 * From the return on lookups miss it, and restores from leases of it end with OKV_E_NOENT. Restores
 * that the Manager had accepted end with the right bytes. The namespace stays open, and new
 * publishes are found.
 *
 * A publish whose start call returned before may be stored as new: wait until publishes ended, in
 * every process that publishes to the namespace, and drop then.
 *
 * Errors   OKV_E_PERM: the engine was opened with OKV_ENGINE_RESTORE_ONLY. OKV_E_TIMEOUT: it may
 *          have been dropped. OKV_E_SESSION, OKV_E_CLOSED, OKV_E_FORKED, OKV_E_INVAL (NULL).
 * Blocks   until the Manager looked at every block that it has. Threads  any.
 */
OKV_EXPORT int okv_namespace_drop(struct okv_namespace *ns, struct okv_error *err);
/** Bytes that one block of the group has on one rank; 0 for an unknown group. */
OKV_EXPORT uint64_t okv_namespace_block_bytes(const struct okv_namespace *ns, uint32_t group);

#define OKV_MAX_NAMESPACE_BYTES 131072u /* of an exported namespace, at most */

/**
 * Write what names the namespace, its identity and its schema, as bytes from which another process
 * opens the same namespace: okv_namespace_import(). Equal namespaces give equal bytes. *ret_size is
 * the size, also when the bytes do not fit; buffer may be NULL with capacity 0.
 *
 * Errors   OKV_E_LIMIT: capacity is smaller than *ret_size; nothing was written. OKV_E_INVAL
 * (NULL). Blocks   never.   Threads any.
 */
OKV_EXPORT int okv_namespace_export(const struct okv_namespace *ns, void *buffer, uint64_t capacity,
				    uint64_t *ret_size);
/**
 * Open a namespace from such bytes, which are checked and copied. They may come from any process,
 * and from an engine of another Manager. Everything else is that of okv_namespace_open().
 *
 * Errors   OKV_E_INVAL: the bytes are not what okv_namespace_export() of this version writes.
 */
OKV_EXPORT int okv_namespace_import(struct okv_engine *engine, const void *bytes, uint64_t size,
				    struct okv_namespace **ret_ns, struct okv_error *err);

/** A group of a namespace, as it was opened or imported. */
struct okv_group_info {
	uint32_t kind; /* enum okv_group_kind */
	uint32_t block_tokens;
	uint32_t window_tokens;
	uint32_t layer_count;
	uint64_t block_bytes; /* that one block has on one rank */
	char layout_tag[32];  /* terminated */
};

/** Numbers of the whole namespace. OKV_E_INVAL for NULL. Blocks never.   Threads any. */
OKV_EXPORT int okv_namespace_shape(const struct okv_namespace *ns, uint32_t *ret_groups,
				   uint32_t *ret_layers, uint32_t *ret_rank_slots);
/** One group. OKV_E_INVAL for an unknown one and NULL. Blocks never.   Threads any. */
OKV_EXPORT int okv_namespace_group(const struct okv_namespace *ns, uint32_t group,
				   struct okv_group_info *ret_info);
/**
 * One layer, counted through all groups as in okv_binding_options. OKV_E_INVAL for an unknown one
 * and NULL. Blocks never.   Threads any.
 */
OKV_EXPORT int okv_namespace_layer(const struct okv_namespace *ns, uint32_t layer,
				   struct okv_layer_schema *ret_layer);

enum okv_device_kind {
	OKV_DEVICE_HOST = 1,
	OKV_DEVICE_CUDA = 2, /* the CUDA driver is loaded at run time */
};

/** The hardware that copies the bytes of a CUDA binding. */
enum okv_copy_path {
	OKV_COPY_AUTO = 0,   /* chosen per copy, from its rows and from what else runs */
	OKV_COPY_DMA = 1,    /* copy engines only: no SM is ever used */
	OKV_COPY_KERNEL = 2, /* the copy kernel only, on copy_sms SMs */
};

/**
 * Keeps a caller's object alive. The library calls retain once when it takes the object, and
 * release once, after the last copy that may touch it; a call that fails releases what it retained
 * before it returns. Set both functions or neither. They must not change the current CUDA context.
 *
 * Threads  retain: the thread that registers or starts, during that call. release: any thread, also
 *          one of the library. Neither runs under a lock of the library, so they may take a lock
 *          that other threads hold around their calls, and may call the library themselves. But an
 *          operation ends only when release has returned: call no okv_op_wait() or
 *          okv_op_wait_layer() without a limit, no okv_binding_quiesce(), okv_binding_unregister()
 *          or okv_engine_close() from retain or release, nor with a lock that these take.
 */
struct okv_owner {
	void *object;
	void (*retain)(void *object);
	void (*release)(void *object);
};

/**
 * One layer of this rank's KV tensors. Segment s of page p is the segment_bytes[s] bytes at
 * base + p * page_stride + segment_offset[s]. The library never touches other bytes.
 * (page_count - 1) * page_stride + the largest segment_offset[s] + segment_bytes[s] must be at most
 * length. A block takes (its segment bytes in the schema) / segment_bytes[s] pages; this number
 * must be the same for every segment of every layer of a group.
 */
struct okv_layer {
	void *base;
	uint64_t length;      /* bytes from base that belong to the tensor; > 0 */
	uint64_t page_stride; /* bytes from one page to the next */
	uint32_t page_count;
	uint32_t segment_count;			   /* as in the schema */
	uint64_t segment_offset[OKV_MAX_SEGMENTS]; /* bytes from the start of the page */
	uint64_t segment_bytes[OKV_MAX_SEGMENTS];  /* bytes in one page */
	struct okv_owner owner;			   /* of the tensor */
};

enum okv_binding_flags {
	/*
	 * Layers of different groups may have the same bytes: an engine whose groups take pages
	 * from one pool, as vLLM's do, lays a layer of each group over one tensor. Such layers have
	 * the same base. All layers of a group have one page_stride, and those of the groups are
	 * multiples of the smallest. Where groups share bytes a page belongs to one of them at a
	 * time: an operation that would write bytes which another uses, or use bytes which another
	 * writes, is refused as one that names the same page. For that the library takes pages at
	 * the same distance from the base as the same bytes, in all layers.
	 */
	OKV_BINDING_SHARED_GROUPS = 0x1,
};

/** The tensors of one rank, for okv_binding_register(); borrowed during the call. */
struct okv_binding_options {
	uint32_t size;	       /* set by the _init call */
	uint32_t device;       /* enum okv_device_kind; default OKV_DEVICE_HOST */
	int32_t device_index;  /* CUDA ordinal, 0 for the host; default 0 */
	uint32_t rank_slot;    /* of this rank, below rank_slots of the namespace; default 0 */
	uint32_t layer_count;  /* as many as the schema has in all groups */
	uint32_t copy_threads; /* host device: 1 to 256; 0, the default: one per CPU, at most 8 */
	/* All layers of group 0, then of group 1, and so on, each in schema order: where kinds
	 * alternate this is not the model's order. A wrong order of layers of equal size cannot be
	 * noticed. */
	const struct okv_layer *layers;
	/* CUDA: enum okv_copy_path; default OKV_COPY_AUTO. The environment variable
	 * ORBITKV_COPY=auto|dma|kernel takes precedence. */
	uint32_t copy_path;
	/* CUDA: SMs that one copy kernel may use, 1 to 64; 0, the default: 4. The environment
	 * variable ORBITKV_COPY_SMS=N takes precedence. Any number of SMs publishes with at most
	 * 0.93 of the rate of a copy engine, because the model's kernel launches would wait on a
	 * full link, and with at most 0.74 while this binding restores. */
	uint32_t copy_sms;
	uint32_t flags;	   /* enum okv_binding_flags; default 0 */
	uint32_t reserved; /* 0 */
};

/** Set size and every default: host device, index 0, rank slot 0. NULL is ignored. */
OKV_EXPORT void okv_binding_options_init(struct okv_binding_options *opts);

/**
 * Register this rank's tensors. The call proves their geometry: no two pages, layers or segments
 * overlap, every page lies inside its tensor, and sizes agree with the schema. It also maps the
 * Manager's arenas and registers them with the device.
 *
 * Layers of one binding, and bindings of one engine, may interleave inside one allocation (fused
 * and cross-layer tensors), but must not share a byte. Two engines of one process do not check this
 * against each other: register the same tensors with the second engine only while no operation of
 * the first one runs.
 * Inside each segment of a block, the bytes of its pages follow each other. Therefore engines with
 * different page sizes share blocks if the tokens and segment bytes of a block are equal.
 *
 * Owns     retains the owner of each layer until the binding is unregistered, or this call fails.
 *          Returns an owned
 *          handle; okv_binding_unregister(). The caller keeps the tensors mapped until then, or
 *          until okv_binding_quiesce() returned 0: if pages of a host binding are unmapped earlier,
 *          a copy faults and the process dies.
 * Errors   OKV_E_INVAL, OKV_E_EXISTS (some bytes are registered already), OKV_E_UNSUPPORTED (no
 *          such device).
 * Blocks   while arenas are registered with the device.
 * Threads  any. The current CUDA context is the same after the call.
 */
OKV_EXPORT int okv_binding_register(struct okv_namespace *ns,
				    const struct okv_binding_options *opts,
				    struct okv_binding **ret_binding, struct okv_error *err);

/**
 * Refuse new operations, wait until all operations of this binding drained, release the owners and
 * free the binding. An operation that is not granted within the engine's connect_timeout_ms ends as
 * OKV_E_CANCELLED. If the Manager hangs, the call then waits for its answer for as long again.
 * Operation handles stay valid to query and release. NULL is allowed.
 *
 * Threads  one thread may unregister; any others may be in okv_binding_quiesce() meanwhile.
 */
OKV_EXPORT void okv_binding_unregister(struct okv_binding *binding);

/**
 * Refuse new operations (OKV_E_CLOSED) and wait until the started ones drained. After 0 no copy
 * touches the pages until okv_binding_resume(), and the tensors may be unmapped. timeout_ms < 0
 * waits without limit. After OKV_E_TIMEOUT the binding still refuses new operations, and copies may
 * still run. The drained operations may report their results a moment after this call returned:
 * use okv_op_wait().
 *
 * The binding knows addresses, not what is mapped there. Only the caller can tell that the tensors
 * are mapped again, so the binding refuses operations until okv_binding_resume().
 *
 * Errors   OKV_E_TIMEOUT, OKV_E_CLOSED (unregistered or the engine is closed), OKV_E_POISONED,
 *          OKV_E_INVAL (NULL), OKV_E_FORKED.
 */
OKV_EXPORT int okv_binding_quiesce(struct okv_binding *binding, int timeout_ms);
/**
 * Accept operations again. The caller promises that every layer is mapped as it was registered: at
 * the same address, with the same length, on the same device. Its contents may have changed. If
 * anything else may be mapped there, unregister and register instead.
 *
 * Errors   OKV_E_INVAL: a layer is not mapped memory of the device; the binding still refuses
 *          operations. OKV_E_CLOSED: the binding is unregistered or the engine is closed.
 */
OKV_EXPORT int okv_binding_resume(struct okv_binding *binding);

#ifdef __cplusplus
}
#endif
#endif
