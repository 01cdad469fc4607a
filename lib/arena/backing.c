/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Shards: sealed memfds for payload, touched on their NUMA node before any engine maps them. */
#include "arena/backing.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "arena/budget.h"
#include "arena/place.h"
#include "arena/touch.h"
#include "base/error.h"
#include "base/fd.h"
#include "wire/shm.h"
#include "wire/wire.h"

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif

#define HUGE_PAGE_BYTES (UINT64_C(2) << 20)
#define MIN_SHARD_BYTES (UINT64_C(64) << 20)
#define MAX_MEMORY_BYTES (UINT64_C(1) << 62)

struct layout {
	uint64_t page;
	uint64_t total;
	uint64_t shard; /* bytes of every shard but the last, which has the rest */
	uint32_t count;
	int32_t nodes[OKI_MAX_NODES];
	uint32_t node_count;
};

static uint64_t round_up(uint64_t bytes, uint64_t page)
{
	return (bytes + page - 1) / page * page;
}

static int size_shards(const struct oki_backing_config *config, struct layout *layout,
		       struct okv_error *err)
{
	uint64_t memory = config->memory_bytes;
	if (memory == 0 || memory > MAX_MEMORY_BYTES || config->shard_bytes > MAX_MEMORY_BYTES)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"memory of %" PRIu64 " bytes in shards of %" PRIu64, memory,
				config->shard_bytes);
	layout->page = config->huge_pages ? HUGE_PAGE_BYTES : (uint64_t)sysconf(_SC_PAGESIZE);
	layout->total = round_up(memory, layout->page);
	uint64_t shard = config->shard_bytes;
	if (shard == 0) {
		shard = (layout->total + OKW_MAX_SHARDS - 1) / OKW_MAX_SHARDS;
		if (shard < MIN_SHARD_BYTES)
			shard = MIN_SHARD_BYTES;
	}
	shard = round_up(shard, layout->page);
	if (shard > layout->total)
		shard = layout->total;
	uint64_t count = (layout->total + shard - 1) / shard;
	if (count > OKW_MAX_SHARDS)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"%" PRIu64 " bytes in shards of %" PRIu64 " need %" PRIu64
				" shards, at most %u; use shards of %" PRIu64 " or more",
				layout->total, shard, count, OKW_MAX_SHARDS,
				round_up((layout->total + OKW_MAX_SHARDS - 1) / OKW_MAX_SHARDS,
					 layout->page));
	layout->shard = shard;
	layout->count = (uint32_t)count;
	return 0;
}

/* Huge pages come from a pool of their own; control memory is ordinary memory in any case. */
static int check_memory(const struct oki_backing_config *config, const struct layout *layout,
			struct okv_error *err)
{
	const struct oki_need need = {
		.memory_bytes = layout->total,
		.huge_pages = config->huge_pages,
		.sessions = config->sessions,
		.session_bytes = config->session_bytes,
	};
	struct oki_budget budget;
	int rc = 0;
	if (config->huge_pages) {
		rc = oki_budget_read("", true, &budget, err);
		if (rc == 0)
			rc = oki_budget_check(&budget, layout->total, err);
	}
	if (rc == 0)
		rc = oki_budget_read("", false, &budget, err);
	return rc < 0 ? rc : oki_budget_check_need(&budget, &need, err);
}

static int check_budget(const struct oki_backing_config *config, const struct layout *layout,
			struct okv_error *err)
{
	struct oki_budget budget;
	int rc = check_memory(config, layout, err);
	if (rc < 0 || config->numa < 0 || layout->nodes[0] < 0)
		return rc;
	/* Memory is bound strictly to a node that was given by number: if the node has too little,
	 * the OOM killer ends the process. */
	rc = oki_budget_read_node("", config->numa, config->huge_pages, &budget, err);
	return rc < 0 ? rc : oki_budget_check(&budget, layout->total, err);
}

static int open_shard(const struct oki_backing_config *config, const struct layout *layout,
		      uint32_t index, struct oki_shard *shard, struct okv_error *err)
{
	char name[32];
	snprintf(name, sizeof(name), "orbitkv-shard-%u", index);
	unsigned huge = config->huge_pages ? MFD_HUGETLB | MFD_HUGE_2MB : 0;
	shard->huge = config->huge_pages;
	shard->node = layout->nodes[index % layout->node_count];
	shard->bytes =
		index + 1 < layout->count ? layout->shard : layout->total - index * layout->shard;
	shard->fd = oki_shm_memfd(name, huge);
	if (shard->fd < 0)
		return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_NONE, errno, "memfd %s", name);
	struct stat st;
	if (ftruncate(shard->fd, (off_t)shard->bytes) < 0 || fstat(shard->fd, &st) < 0)
		return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_NONE, errno,
				   "sizing %s to %" PRIu64 " bytes", name, shard->bytes);
	shard->inode = (uint64_t)st.st_ino;
	return 0;
}

/* A node given by number is a strict binding; one chosen by OKV_NUMA_AUTO is a preference. */
static int bind_shard(const struct oki_backing_config *config, struct oki_shard *shard,
		      uint8_t *base, struct okv_error *err)
{
	if (shard->node < 0)
		return 0;
	int error = oki_place_memory(base, shard->bytes, shard->node, config->numa >= 0);
	if (!error)
		return 0;
	if (config->numa >= 0)
		return oki_fail_os(err, OKV_E_UNSUPPORTED, OKV_STAGE_NONE, error,
				   "binding memory to NUMA node %d", shard->node);
	oki_log(config->log, OKV_LOG_WARN, "memory is not bound to NUMA node %d: %s", shard->node,
		strerrordesc_np(error));
	shard->node = -1;
	return 0;
}

static int map_shard(const struct oki_backing_config *config, const struct layout *layout,
		     struct oki_shard *shard, struct oki_touch_range *ret_range,
		     struct okv_error *err)
{
	void *base = mmap(NULL, shard->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, shard->fd, 0);
	if (base == MAP_FAILED)
		return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_NONE, errno,
				   "mapping a shard of %" PRIu64 " bytes in pages of %" PRIu64,
				   shard->bytes, layout->page);
	int rc = bind_shard(config, shard, base, err);
	if (rc < 0) {
		munmap(base, shard->bytes);
		return rc;
	}
	*ret_range = (struct oki_touch_range){
		.base = base,
		.bytes = shard->bytes,
		.page = layout->page,
		.fd = shard->fd,
		.node = shard->node,
	};
	return 0;
}

/* Map the shards only while they are touched: the Manager itself never reads or writes payload. */
static int fill_shards(const struct oki_backing_config *config, const struct layout *layout,
		       struct oki_shards *shards, struct okv_error *err)
{
	OKI_FREE struct oki_touch_range *ranges = calloc(layout->count, sizeof(*ranges));
	if (!ranges)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_NONE, "out of memory");
	uint32_t mapped = 0;
	int rc = 0;
	while (rc == 0 && mapped < layout->count) {
		rc = map_shard(config, layout, &shards->shards[mapped], &ranges[mapped], err);
		mapped += rc == 0;
	}
	if (rc == 0)
		rc = oki_touch(ranges, layout->count, config->touch_threads, config->progress,
			       config->progress_arg, err);
	while (mapped > 0) {
		mapped--;
		munmap(ranges[mapped].base, ranges[mapped].bytes);
	}
	return rc;
}

static int seal_shards(const struct oki_shards *shards, struct okv_error *err)
{
	for (uint32_t i = 0; i < shards->count; i++)
		if (oki_shm_seal(shards->shards[i].fd) < 0)
			return oki_fail_os(err, OKV_E_UNSUPPORTED, OKV_STAGE_NONE, errno,
					   "sealing shard %u", i);
	return 0;
}

static int choose_nodes(const struct oki_backing_config *config, struct layout *layout,
			struct okv_error *err)
{
	struct oki_nodes nodes;
	oki_nodes_read(&nodes);
	int rc = oki_nodes_pick(&nodes, config->numa, layout->nodes, &layout->node_count, err);
	if (rc == 0 && config->numa >= 0 && layout->nodes[0] < 0)
		oki_log(config->log, OKV_LOG_WARN,
			"no NUMA on this host: memory is not bound to node %d", config->numa);
	return rc;
}

int oki_shards_create(const struct oki_backing_config *config, struct oki_shards *ret_shards,
		      struct okv_error *err)
{
	struct layout layout;
	int rc = size_shards(config, &layout, err);
	if (rc == 0)
		rc = choose_nodes(config, &layout, err);
	if (rc == 0)
		rc = check_budget(config, &layout, err);
	if (rc < 0)
		return rc;

	struct oki_shards shards = {.bytes = layout.total};
	shards.shards = calloc(layout.count, sizeof(*shards.shards));
	if (!shards.shards)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_NONE, "out of memory");
	while (rc == 0 && shards.count < layout.count) {
		rc = open_shard(config, &layout, shards.count, &shards.shards[shards.count], err);
		shards.count++;
	}
	if (rc == 0)
		rc = fill_shards(config, &layout, &shards, err);
	if (rc == 0)
		rc = seal_shards(&shards, err);
	if (rc < 0) {
		oki_shards_destroy(&shards);
		return rc;
	}
	uint32_t nodes = layout.nodes[0] < 0 ? 0 : layout.node_count;
	oki_log(config->log, OKV_LOG_INFO,
		"%" PRIu64 " bytes ready in %u shard%s of up to %" PRIu64 " on %u NUMA node%s",
		layout.total, layout.count, oki_plural(layout.count), layout.shard, nodes,
		oki_plural(nodes));
	*ret_shards = shards;
	return 0;
}

void oki_shards_destroy(struct oki_shards *shards)
{
	if (!shards)
		return;
	for (uint32_t i = 0; i < shards->count; i++)
		oki_fd_close(&shards->shards[i].fd);
	free(shards->shards);
	*shards = (struct oki_shards){0};
}
