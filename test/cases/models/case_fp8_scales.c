/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FP8 values whose scales lie in a table of their own. Declared as layers they travel with the
 * bytes; is it noticed when the schema forgets them?
 */
#include "cases/case.h"

#define LAYERS 4u
#define PAGES 8u
#define TABLE 128u
static uint8_t values[LAYERS][PAGES][4096];
static float scales[LAYERS][PAGES][TABLE];

static struct okv_namespace *namespace_of(struct okv_engine *engine, bool has_scales)
{
	struct okv_layer_schema schema[2 * LAYERS] = {0};
	struct okv_namespace_options o;
	struct okv_namespace *ns;
	uint32_t n = 0;
	for (uint32_t l = 0; l < LAYERS; l++) {
		schema[n] = (struct okv_layer_schema){n, 1, {sizeof(values[0][0])}};
		n++;
		if (has_scales) {
			schema[n] = (struct okv_layer_schema){n, 1, {sizeof(scales[0][0])}};
			n++;
		}
	}
	const struct okv_group_schema g = {OKV_GROUP_FULL, 16, 0, n, "NHD/fp8", schema};
	okv_namespace_options_init(&o);
	o.model = "fp8";
	o.dtype = "e4m3";
	o.group_count = 1;
	o.groups = &g;
	case_must(okv_namespace_open(engine, &o, &ns, &case_err));
	return ns;
}

static struct okv_layer layer_of(void *base, uint64_t bytes)
{
	return (struct okv_layer){
		.base = base,
		.length = PAGES * bytes,
		.page_stride = bytes,
		.page_count = PAGES,
		.segment_count = 1,
		.segment_bytes = {bytes},
	};
}

static struct okv_binding *binding_of(struct okv_namespace *ns, bool has_scales)
{
	struct okv_layer layers[2 * LAYERS] = {0};
	struct okv_binding_options o;
	struct okv_binding *binding;
	uint32_t n = 0;
	for (uint32_t l = 0; l < LAYERS; l++) {
		layers[n++] = layer_of(values[l], sizeof(values[0][0]));
		if (has_scales)
			layers[n++] = layer_of(scales[l], sizeof(scales[0][0]));
	}
	okv_binding_options_init(&o);
	o.layer_count = n;
	o.layers = layers;
	case_must(okv_binding_register(ns, &o, &binding, &case_err));
	return binding;
}

static void set_page(uint32_t page, int value, float scale)
{
	for (uint32_t l = 0; l < LAYERS; l++) {
		memset(values[l][page], value, sizeof(values[l][page]));
		for (uint32_t i = 0; i < TABLE; i++)
			scales[l][page][i] = scale * (float)(l + 1);
	}
}

static int go(struct okv_namespace *ns, bool has_scales)
{
	struct okv_binding *binding = binding_of(ns, has_scales);
	struct case_rank r = {.binding = binding, .groups = {{.block_tokens = 16}}};
	struct okv_restore_options o;
	struct okv_op *op = NULL;
	struct okv_lookup_result found;
	struct okv_lease *lease;
	const uint32_t from[2] = {1, 2}, to[2] = {5, 4};
	uint8_t *keys = case_keys(has_scales, 0, 2);
	set_page(1, 11, 1.5f);
	set_page(2, 12, 2.5f);
	case_must(case_publish_start(&r, 0, keys, 0, 2, from, 0, &op));
	case_must(case_end(op, NULL));
	set_page(4, 0, -7);
	set_page(5, 0, -7);
	case_must(case_find(ns, keys, 2, &found, &lease));
	const struct okv_restore_group g = {.count = 2, .pages = to};
	okv_restore_options_init(&o);
	o.group_count = 1;
	o.groups = &g;
	case_must(okv_restore_start(binding, lease, &o, &op, &case_err));
	case_must(case_end(op, NULL));
	okv_lease_release(lease);
	int wrong_values = 0, wrong_scales = 0;
	for (uint32_t l = 0; l < LAYERS; l++)
		for (int i = 0; i < 2; i++) {
			wrong_values += memcmp(values[l][to[i]], values[l][from[i]],
					       sizeof(values[0][0])) != 0;
			wrong_scales += memcmp(scales[l][to[i]], scales[l][from[i]],
					       sizeof(scales[0][0])) != 0;
		}
	printf("scales %s: restored, pages with wrong values %d, with another block's scales %d of "
	       "%u\n",
	       has_scales ? "declared as layers" : "forgotten in the schema", wrong_values,
	       wrong_scales, 2 * LAYERS);
	okv_binding_unregister(binding);
	return wrong_values + wrong_scales;
}

int main(void)
{
	struct okv_engine *engine;
	int wrong = 0;
	case_must(case_engine(NULL, 64u << 20, &engine));
	for (int has_scales = 1; has_scales >= 0; has_scales--) {
		struct okv_namespace *ns = namespace_of(engine, has_scales);
		wrong += go(ns, has_scales);
		okv_namespace_close(ns);
	}
	okv_engine_close(engine);
	return wrong != 0;
}
