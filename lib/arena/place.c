/* SPDX-License-Identifier: Apache-2.0 */
/* [M] NUMA nodes: which exist, which get shards, and how to bind memory and threads to them. */
#include "arena/place.h"

#include <errno.h>
#include <numa.h>
#include <numaif.h>
#include <stdio.h>
#include <string.h>
#include <orbitkv/manager.h>
#include "base/error.h"

static uint32_t cpus_of(int id)
{
	struct bitmask *mask = numa_allocate_cpumask();
	if (!mask)
		return 0;
	uint32_t cpus = 0;
	if (numa_node_to_cpus(id, mask) == 0)
		cpus = numa_bitmask_weight(mask);
	numa_free_cpumask(mask);
	return cpus;
}

void oki_nodes_read(struct oki_nodes *ret_nodes)
{
	memset(ret_nodes, 0, sizeof(*ret_nodes));
	if (numa_available() < 0)
		return;
	struct bitmask *allowed = numa_get_mems_allowed();
	int last = numa_max_node();
	for (int id = 0; allowed && id <= last && ret_nodes->count < OKI_MAX_NODES; id++) {
		if (!numa_bitmask_isbitset(allowed, (unsigned)id))
			continue;
		long long bytes = numa_node_size64(id, NULL);
		ret_nodes->node[ret_nodes->count++] = (struct oki_node){
			.id = id,
			.cpus = cpus_of(id),
			.bytes = bytes > 0 ? (uint64_t)bytes : 0,
		};
	}
	if (allowed)
		numa_free_nodemask(allowed);
}

static uint32_t pick_all(const struct oki_nodes *nodes, bool need_cpus, int32_t *picked)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < nodes->count; i++) {
		const struct oki_node *node = &nodes->node[i];
		if (node->bytes > 0 && (node->cpus > 0 || !need_cpus))
			picked[count++] = node->id;
	}
	return count;
}

static int refuse(const struct oki_nodes *nodes, int32_t numa, struct okv_error *err)
{
	char list[160] = "";
	size_t used = 0;
	for (uint32_t i = 0; i < nodes->count && used < sizeof(list) - 16; i++)
		if (nodes->node[i].bytes > 0)
			used += (size_t)snprintf(list + used, sizeof(list) - used, " %d",
						 nodes->node[i].id);
	return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
			"NUMA node %d is unknown or has no memory; valid:%s", numa,
			used ? list : " none");
}

int oki_nodes_pick(const struct oki_nodes *nodes, int32_t numa, int32_t *ret_picked,
		   uint32_t *ret_count, struct okv_error *err)
{
	if (numa < OKV_NUMA_OFF)
		return refuse(nodes, numa, err);
	uint32_t count = 0;
	if (numa != OKV_NUMA_OFF && nodes->count > 0) {
		if (numa >= 0) {
			for (uint32_t i = 0; i < nodes->count; i++)
				if (nodes->node[i].id == numa && nodes->node[i].bytes > 0)
					ret_picked[count++] = numa;
			if (count == 0)
				return refuse(nodes, numa, err);
		} else {
			count = pick_all(nodes, true, ret_picked);
			if (count == 0)
				count = pick_all(nodes, false, ret_picked);
		}
	}
	if (count == 0)
		ret_picked[count++] = -1;
	*ret_count = count;
	return 0;
}

int oki_place_memory(void *base, uint64_t bytes, int32_t node, bool strict)
{
	struct bitmask *mask = numa_allocate_nodemask();
	if (!mask)
		return ENOMEM;
	numa_bitmask_setbit(mask, (unsigned)node);
	long rc = mbind(base, bytes, strict ? MPOL_BIND : MPOL_PREFERRED, mask->maskp,
			mask->size + 1, 0);
	int error = rc < 0 ? errno : 0;
	numa_free_nodemask(mask);
	return error;
}

void oki_place_thread(int32_t node)
{
	/* A failure costs only speed: the policy of the memory decides where its pages are. */
	if (node >= 0)
		(void)numa_run_on_node(node);
}
