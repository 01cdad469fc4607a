/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Where a rank's layers are in memory, proven once, at registration. */
#ifndef OKI_PLAN_GEOMETRY_H
#define OKI_PLAN_GEOMETRY_H

#include "device/device.h"
#include "schema/schema.h"

struct oki_geometry {
	uint32_t layer_count;
	uint32_t group_count;
	struct oki_layer_map *maps; /* owned; as schema->layers */
	uint64_t *lengths;	    /* owned; the caller's length of each layer */
	uint32_t pages_per_block[OKV_MAX_GROUPS];
	uint32_t page_count[OKV_MAX_GROUPS]; /* the smallest of the group's layers */
	/* With shared groups, a page of a group has the bytes of so many units; units of all groups
	 * are numbered alike. Else 1. */
	uint32_t page_units[OKV_MAX_GROUPS];
	bool shared_groups;
};

/*
 * Prove, in checked 64-bit arithmetic: sizes agree with the schema, one pages-per-block per group,
 * every page inside its tensor, no byte in two (page, layer, segment). OKV_E_INVAL names the layer.
 * shared_groups: layers of different groups may share bytes, see OKV_BINDING_SHARED_GROUPS.
 */
int oki_geometry_init(struct oki_geometry *geometry, const struct oki_schema *schema,
		      const struct okv_layer *layers, uint32_t layer_count, bool shared_groups,
		      struct okv_error *err);
void oki_geometry_fini(struct oki_geometry *geometry);

/* Do two geometries share a byte? Exact, also for interleaved layers with different strides. */
bool oki_geometry_overlaps(const struct oki_geometry *a, const struct oki_geometry *b);

#endif
