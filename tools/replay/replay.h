/* SPDX-License-Identifier: Apache-2.0 */
/* [E] orbitkv-replay: requests of a trace through the cache, every restored byte checked. */
#ifndef ORBITKV_TOOLS_REPLAY_H
#define ORBITKV_TOOLS_REPLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <orbitkv/orbitkv.h>
#include "tool_child.h"
#include "tool_cuda.h"
#include "tool_pattern.h"
#include "tool_shape.h"

#define REPLAY_WAIT_MS 60000 /* longest any single operation may take */

/* ---- replay_model.c: what one block holds ---- */

struct replay_model {
	struct tool_shape shape;
	uint64_t payload_bytes[OKV_MAX_GROUPS]; /* of one block of the group */
	uint64_t stored_bytes[OKV_MAX_GROUPS];	/* what it takes in the Manager */
	uint64_t block_bytes;			/* stored_bytes of all groups together */
};

/*
 * The model `name` of a JSON file, or of the built-in ones when file is NULL; a NULL name means
 * "tiny". Prints why to stderr and returns -1 on failure.
 */
int replay_model_load(const char *file, const char *name, struct replay_model *ret_model);
/* Rounded as the Manager allocates, so that --blocks is exact. */
uint64_t replay_stored_bytes(uint64_t block_bytes);
void replay_model_fini(struct replay_model *model);

/* ---- replay_trace.c: which blocks each request names ---- */

struct replay_trace {
	uint32_t request_count;
	uint32_t longest; /* blocks of the longest request */
	uint64_t block_count;
	uint64_t *ids;	  /* owned; request after request */
	uint64_t *starts; /* owned; request_count + 1 places in ids */
};

/*
 * Read up to max_requests (0: all) JSON lines with "hash_ids". Requests are cut to
 * OKV_MAX_BLOCKS. Prints why to stderr and returns -1 on failure.
 */
int replay_trace_load(const char *file, uint32_t max_requests, struct replay_trace *ret_trace);
void replay_trace_fini(struct replay_trace *trace);

/* ---- replay_pages.c: the engine's KV tensors ---- */

struct replay_pages {
	const struct replay_model *model; /* borrowed */
	uint32_t page_count;
	uint32_t device;	  /* enum okv_device_kind */
	uint64_t bytes;		  /* of all tensors */
	uint8_t *tensors;	  /* device memory */
	uint8_t *mirror;	  /* the same bytes for the CPU; on the host device the tensors */
	struct okv_layer *layers; /* owned; as okv_binding_register() wants them */
	uint32_t *order;	  /* owned; page of each block of the current request */
	struct tool_cuda gpu;	  /* all zeros on the host device */
};

/* 0, TOOL_SKIPPED when the device does not exist here, or TOOL_FAILED; why is in text. */
int replay_pages_create(const struct replay_model *model, uint32_t device, uint32_t page_count,
			struct replay_pages *ret_pages, char *text);
void replay_pages_destroy(struct replay_pages *pages);

/* Choose a page for each of the next request's blocks: shuffled, or consecutive when tidy. */
void replay_pages_choose(struct replay_pages *pages, uint64_t seed, bool tidy);
/* Where the CPU sees a segment of a page. */
uint8_t *replay_pages_row(const struct replay_pages *pages, uint32_t layer, uint32_t segment,
			  uint32_t page);
/* Make device and mirror agree, in one direction, in the order of the null stream. */
int replay_pages_upload(struct replay_pages *pages, char *text);
int replay_pages_download(struct replay_pages *pages, char *text);

/* Blocks [first, first + count) of one group of a request whose block ids are ids. */
struct replay_span {
	uint32_t group;
	uint32_t first;
	uint32_t count;
	const uint64_t *ids;
};

void replay_pages_poison(struct replay_pages *pages, const struct replay_span *span);
void replay_pages_fill(struct replay_pages *pages, const struct replay_span *span);
uint64_t replay_pages_check(struct replay_pages *pages, const struct replay_span *span, char *text);

/* ---- replay_engine.c: one engine process ---- */

struct replay_config {
	const char *trace_file;
	const char *models_file;
	const char *model_name;
	const char *socket; /* NULL: a Manager of our own */
	uint32_t requests;  /* 0: all */
	uint32_t engines;
	uint32_t device; /* enum okv_device_kind */
	uint64_t memory_bytes;
	uint32_t blocks; /* 0: memory_bytes decides */
	bool embedded;
	bool tidy;
	bool json;
	bool speed;
	struct replay_model model;
	struct replay_trace trace;
};

/* What became of one request. */
struct replay_outcome {
	int32_t status; /* TOOL_OK, TOOL_FAILED, TOOL_SKIPPED */
	uint32_t blocks;
	uint32_t hit_blocks;
	uint32_t reserved;
	uint64_t lookup_ns;
	uint64_t restore_ns; /* start to drained; 0: nothing to restore */
	uint64_t restored_bytes;
	uint64_t published_bytes;
	uint64_t mismatched_bytes;
	char text[TOOL_TEXT];
};

struct replay_engine {
	const struct replay_config *config; /* borrowed */
	struct replay_pages pages;
	struct okv_engine *engine;
	struct okv_namespace *ns;
	struct okv_binding *binding;
	uint8_t *keys; /* owned; of the current request */
};

/* As replay_pages_create(). socket NULL: embedded. */
int replay_engine_open(const struct replay_config *config, const char *socket,
		       struct replay_engine **ret_engine, char *text);
void replay_engine_close(struct replay_engine *engine);
/* Look request `index` up, restore and check the hit, fill and publish the rest. */
void replay_engine_run(struct replay_engine *engine, uint32_t index,
		       struct replay_outcome *ret_outcome);

/* ---- replay_model.c again: how much memory the Manager gets ---- */

/* Memory options that give config->blocks blocks, or config->memory_bytes. */
void replay_manager_options(const struct replay_config *config, struct okv_manager_options *opts);
/* As tool_manager_start(), with these options. */
int replay_manager_start(const struct replay_config *config, struct tool_manager *ret_manager,
			 char *text);

/* ---- replay_fleet.c: engine processes that take turns ---- */

struct replay_fleet;

/* Called after each request; false ends the replay. */
typedef bool replay_each_fn(void *arg, const struct replay_outcome *outcome);

int replay_fleet_start(const struct replay_config *config, const char *socket,
		       struct replay_fleet **ret_fleet, char *text);
/* Request i goes to engine i mod engines, one at a time. */
int replay_fleet_run(struct replay_fleet *fleet, replay_each_fn *each, void *arg, char *text);
/* 0 when every engine process exited cleanly. */
int replay_fleet_stop(struct replay_fleet *fleet);

/* ---- replay_report.c: totals and how they are shown ---- */

struct replay_report {
	const struct replay_config *config; /* borrowed */
	uint64_t *lookup_ns;		    /* owned; one per request */
	uint64_t *restore_ns;		    /* owned; one per restore */
	uint32_t requests;
	uint32_t restores;
	uint32_t failures;
	uint64_t blocks;
	uint64_t hit_blocks;
	uint64_t published_bytes;
	uint64_t restored_bytes;
	uint64_t mismatched_bytes;
	uint64_t restore_total_ns;
	uint64_t capacity_blocks;
	uint64_t evictions;
	bool evictions_known; /* a Manager inside the engine cannot be asked */
	uint64_t progress_ns; /* when the bar was last drawn */
};

int replay_report_init(const struct replay_config *config, struct replay_report *ret_report);
void replay_report_fini(struct replay_report *report);
/* A replay_each_fn: adds, draws the progress bar, ends the replay at the first failure. */
bool replay_report_add(void *arg, const struct replay_outcome *outcome);
/* Ends the progress bar; says how far a replay came that was told to stop. */
void replay_report_stop(const struct replay_report *report);
/* Ends the progress bar; prints the table, or JSON. Returns the exit status. */
int replay_report_print(struct replay_report *report);
const char *replay_device_name(uint32_t device);

/* ---- replay_speed.c ---- */

/* Restore against plain memcpy, and the latency of a one-key lookup. Returns an exit status. */
int replay_speed(struct replay_config *config);

#endif
