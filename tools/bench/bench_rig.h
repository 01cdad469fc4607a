/* SPDX-License-Identifier: Apache-2.0 */
/* [E] One engine with pages of one geometry beside a Manager of its own, and what moves them. */
#ifndef ORBITKV_TOOLS_BENCH_RIG_H
#define ORBITKV_TOOLS_BENCH_RIG_H

#include "bench.h"
#include "bench_cuda.h"

/* ---- bench_pages.c: the engine's tensors, and plain copies of the same bytes ---- */

/* Pages come in two halves, so that a restore and a publish can run at once. */
enum bench_half { BENCH_RESTORE_HALF, BENCH_PUBLISH_HALF, BENCH_HALVES };

struct bench_pages {
	const struct bench_config *config; /* borrowed */
	const struct tool_shape *shape;	   /* borrowed */
	uint32_t blocks;		   /* of each half at most */
	uint32_t pool;			   /* pages of each half, of which operations use some */
	bool tidy;			   /* consecutive pages and blocks */
	uint32_t span;			   /* those that are used now are among so many */
	uint32_t block_span;		   /* likewise of stored blocks */
	uint64_t half_bytes;		   /* payload of each half */
	uint64_t bytes;			   /* of all tensors */
	uint64_t mirror_bytes;
	uint8_t *tensors; /* device memory */
	uint8_t *mirror;  /* rows for the CPU; on the host device the tensors themselves */
	uint8_t *staging; /* blocks of both halves one after another, as the Manager keeps them */
	struct okv_layer *layers; /* owned */
	/* Owned; the page, and the stored block, at each position of an operation. */
	uint32_t *order[BENCH_HALVES];
	uint32_t *contents[BENCH_HALVES];
	tool_device_address gpu; /* 0 on the host device */
};

/* One segment of one layer of one block. */
struct bench_row {
	uint64_t page_at;   /* offset in the tensors */
	uint64_t mirror_at; /* offset in the mirror */
	uint64_t stage_at;  /* offset in staging */
	uint32_t block;	    /* the stored one */
	uint16_t layer;
	uint16_t segment;
};

/* The rows of one operation, layer after layer. */
struct bench_rows {
	struct bench_row *rows; /* owned */
	uint64_t count;
	uint64_t bytes;	       /* of all */
	uint32_t blocks;       /* rows are of blocks below this */
	uint64_t *layer_start; /* owned; layer_count + 1 */
	enum bench_half half;
};

int bench_pages_create(const struct bench_config *config, const struct tool_shape *shape,
		       uint32_t blocks, struct bench_pages *ret_pages, char *text);
void bench_pages_destroy(struct bench_pages *pages);

/* ---- bench_rows.c: pages and blocks of an operation ---- */

/*
 * For operations of up to count blocks: consecutive pages and, of a restore, blocks; or random
 * pages of a GPU's whole pool and random blocks, and on the CPU pages, of the first 4 * count as
 * far as there are so many.
 */
void bench_pages_arrange(struct bench_pages *pages, bool tidy, uint32_t count);
/* hits: the blocks of each group; NULL: [0, count) of every group. */
int bench_rows_create(const struct bench_pages *pages, enum bench_half half, uint32_t count,
		      const struct okv_hit *hits, struct bench_rows *ret_rows, char *text);
void bench_rows_fini(struct bench_rows *rows);

/* ---- bench_pages.c again ---- */

/* Overwrite a half's pages, or what copies of the rows touch in staging: nobody's content. */
int bench_pages_poison(struct bench_pages *pages, enum bench_half half, char *text);
void bench_staging_poison(struct bench_pages *pages, const struct bench_rows *rows);
/* Blocks content, content + 1, … into the pages or into staging. */
int bench_pages_fill(struct bench_pages *pages, const struct bench_rows *rows, uint32_t content,
		     char *text);
void bench_staging_fill(struct bench_pages *pages, const struct bench_rows *rows, uint32_t content);
/* Every byte of the first count rows. TOOL_FAILED tells the first that is wrong. */
int bench_pages_check(struct bench_pages *pages, const struct bench_rows *rows, uint64_t count,
		      uint32_t content, char *text);
int bench_staging_check(struct bench_pages *pages, const struct bench_rows *rows, uint64_t count,
			uint32_t content, char *text);
/* For a contiguous copy of [at, at + bytes): content in the source, poison where it goes. */
int bench_stretch_to_pages(struct bench_pages *pages, uint64_t at, uint64_t bytes, uint32_t content,
			   char *text);
int bench_stretch_to_staging(struct bench_pages *pages, uint64_t at, uint64_t bytes,
			     uint32_t content, char *text);
/* Do tensors and staging hold the same bytes in [0, bytes)? */
int bench_pages_compare(struct bench_pages *pages, uint64_t tensor_at, uint64_t staging_at,
			uint64_t bytes, char *text);

/* ---- bench_baseline.c: the alternatives ---- */

enum bench_direction { BENCH_RESTORE, BENCH_PUBLISH, BENCH_BOTH };

enum bench_baseline_kind {
	BENCH_CONTIGUOUS,  /* one copy of as many bytes */
	BENCH_LOOP,	   /* one (asynchronous) copy per row */
	BENCH_BATCH,	   /* all rows in one batched call; on the host memcpy by all threads */
	BENCH_BATCH_LAYER, /* a batched call and an event per layer */
	BENCH_BASELINES
};

const char *bench_baseline_name(const struct bench_config *config, enum bench_baseline_kind kind);
/*
 * Poison, run, check. TOOL_SKIPPED where the device has no such call. For BENCH_BOTH only
 * BENCH_CONTIGUOUS exists. content must not have been used before.
 */
int bench_baseline_run(struct bench_pages *pages, const struct bench_rows *rows,
		       enum bench_direction direction, enum bench_baseline_kind kind,
		       uint32_t content, struct bench_set *ret_set, char *text);

/* ---- bench_rig.c: the cache ---- */

struct bench_rig {
	const struct bench_config *config; /* borrowed */
	const struct tool_shape *shape;	   /* borrowed */
	struct tool_manager manager;
	struct okv_engine *engine;
	struct okv_namespace *ns;
	struct okv_binding *binding;
	uint64_t register_ns; /* what okv_binding_register() took: arenas imported and pinned */
	struct bench_pages pages;
	uint8_t *keys; /* owned; of the operation at hand */
	uint32_t next_id;
};

struct bench_hold {
	struct okv_lease *lease;
	struct okv_lookup_result found;
};

/* Operations have up to blocks blocks; the Manager gets memory_bytes. */
int bench_rig_open(const struct bench_config *config, const struct tool_shape *shape,
		   uint32_t blocks, uint64_t memory_bytes, struct bench_rig **ret_rig, char *text);
int bench_rig_close(struct bench_rig *rig, char *text);
/* count ids that no content and no key used before. */
uint32_t bench_rig_ids(struct bench_rig *rig, uint32_t count);

int bench_rig_publish_start(struct bench_rig *rig, enum bench_half half, uint32_t count,
			    struct okv_op **ret_op, char *text);
/* Computes the keys that the next publish stores: first_key + contents[i], or in order if that is
 * NULL. */
void bench_rig_keys(struct bench_rig *rig, uint32_t first_key, const uint32_t *contents,
		    uint32_t count);
int bench_rig_restore_start(struct bench_rig *rig, enum bench_half half,
			    const struct bench_hold *hold, const struct okv_layer_event *events,
			    uint32_t event_count, struct okv_op **ret_op, char *text);
/* Wait, release, and demand that so many bytes were copied. start_ns was before the start call. */
int bench_rig_finish(struct okv_op *op, uint64_t bytes, uint64_t start_ns,
		     struct bench_sample *ret_sample, char *text);
/* Pages of the half, already filled, under keys first_key, …. */
int bench_rig_store(struct bench_rig *rig, enum bench_half half, uint32_t first_key, uint32_t count,
		    char *text);
/* Blocks contents[0], contents[1], … of those under keys first_key, …; NULL: in order. TOOL_FAILED
 * unless all count are there. */
int bench_rig_hold(struct bench_rig *rig, uint32_t first_key, const uint32_t *contents,
		   uint32_t count, struct bench_hold *ret_hold, char *text);
/* Fill the restore half, store it under fresh keys, which are also the contents' ids, hold it. */
int bench_rig_seed(struct bench_rig *rig, uint32_t count, uint32_t *ret_first_key,
		   struct bench_hold *ret_hold, char *text);
void bench_rig_drop(struct bench_hold *hold);

#endif
