/* SPDX-License-Identifier: Apache-2.0 */
/* [M] NUMA nodes: which exist, which get shards, and how to bind memory and threads to them. */
#ifndef OKI_ARENA_PLACE_H
#define OKI_ARENA_PLACE_H

#include <stdbool.h>
#include <stdint.h>
#include <orbitkv/status.h>

#define OKI_MAX_NODES 128u

struct oki_node {
	int32_t id;
	uint32_t cpus;
	uint64_t bytes; /* of memory; 0: none */
};

struct oki_nodes {
	struct oki_node node[OKI_MAX_NODES];
	uint32_t count; /* 0: this host or kernel has no NUMA calls */
};

/* The nodes this process may allocate from. */
void oki_nodes_read(struct oki_nodes *ret_nodes);

/*
 * Choose the nodes that shards are placed on in turn. ret_picked has room for OKI_MAX_NODES; -1 in
 * it means no binding.
 *   OKV_NUMA_OFF, or no NUMA:  one entry, -1.
 *   OKV_NUMA_AUTO:  every node with memory and CPUs; if there is none, every node with memory.
 *       Memory without CPUs belongs to a device or is slow, so it is no default.
 *   a node:  that one; OKV_E_INVAL if it is unknown or has no memory, with the valid ones.
 */
int oki_nodes_pick(const struct oki_nodes *nodes, int32_t numa, int32_t *ret_picked,
		   uint32_t *ret_count, struct okv_error *err);

/* Bind a mapping, and so its file, to a node; before the first touch. 0 or an errno value. */
int oki_place_memory(void *base, uint64_t bytes, int32_t node, bool strict);

/* Let the calling thread run on the node's CPUs only, if that is possible. */
void oki_place_thread(int32_t node);

#endif
