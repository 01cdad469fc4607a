/* SPDX-License-Identifier: Apache-2.0 */
/* Copy calls for layers of one group, as most tests have them. */
#ifndef TEST_DEVICE_SAME_RUNS_H
#define TEST_DEVICE_SAME_RUNS_H

#include "device/device.h"

/* events may be NULL. */
static inline void same_runs(struct oki_layer_copy *layers, const struct oki_layer_map *const *maps,
			     struct CUevent_st *const *events, uint32_t count,
			     const struct oki_run *runs, uint32_t run_count)
{
	for (uint32_t i = 0; i < count; i++)
		layers[i] = (struct oki_layer_copy){.map = maps[i],
						    .runs = runs,
						    .run_count = run_count,
						    .event = events ? events[i] : NULL};
}

static inline int copy_same(const struct oki_device_ops *table, struct oki_stream *stream,
			    enum oki_direction direction, const struct oki_layer_map *const *maps,
			    struct CUevent_st *const *events, uint32_t count,
			    const struct oki_run *runs, uint32_t run_count, struct okv_error *err)
{
	struct oki_layer_copy layers[OKI_JOIN_MAX];
	same_runs(layers, maps, events, count, runs, run_count);
	return table->copy(stream, direction, layers, count, err);
}

#endif
