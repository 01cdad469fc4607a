/* SPDX-License-Identifier: Apache-2.0 */
/* [M] NUMA nodes: which exist, which get shards, and how memory and threads reach them. */
#ifndef OKI_ARENA_PLACE_H
#define OKI_ARENA_PLACE_H

#include <stdbool.h>
#include <stdint.h>
#include <orbitkv/status.h>

#define OKI_MAX_NODES 128u

struct oki_node {
	int32_t id;
	uint32_t cpus;
	uint64_t bytes; /* 0: no memory */
};

struct oki_nodes {
	struct oki_node node[OKI_MAX_NODES];
	uint32_t count; /* 0: this host or kernel has no NUMA calls */
};

/* The nodes this process may allocate from. */
void oki_nodes_read(struct oki_nodes *ret_nodes);

/*
 * The nodes that shards go to, round robin. ret_picked has room for OKI_MAX_NODES; -1 in it means
 * no binding.
 *   OKV_NUMA_OFF, or no NUMA:  one entry, -1.
 *   OKV_NUMA_AUTO:  every node with memory and CPUs; if there is none, every node with memory.
 *       Memory without CPUs is a device's or a slow tier's, nothing to fall into by default.
 *   a node:  that one; OKV_E_INVAL naming the valid ones when it is unknown or has no memory.
 */
int oki_nodes_pick(const struct oki_nodes *nodes, int32_t numa, int32_t *ret_picked,
		   uint32_t *ret_count, struct okv_error *err);

/* Bind a mapping, and with it the file, to a node before its first touch. 0 or an errno value. */
int oki_place_memory(void *base, uint64_t bytes, int32_t node, bool strict);

/* Let the calling thread run on the node's CPUs, if it has any it may use. */
void oki_place_thread(int32_t node);

#endif
