/* SPDX-License-Identifier: Apache-2.0 */
/* Engines of the cases, and what they publish, look up and restore. */
#include "cases/case.h"

#include <stdarg.h>
#include <sys/mman.h>
#include <time.h>

struct okv_error case_err;

void case_die(const char *format, ...)
{
	va_list list;
	va_start(list, format);
	vfprintf(stderr, format, list);
	va_end(list);
	fputc('\n', stderr);
	exit(2);
}

double case_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void case_pause(double seconds)
{
	struct timespec t = {(time_t)seconds, 0};
	t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
	nanosleep(&t, NULL);
}

static void say(void *arg, enum okv_log_level level, const char *line)
{
	(void)arg;
	if (level <= OKV_LOG_WARN)
		fprintf(stderr, "  [log] %s\n", line);
}

int case_engine(const char *socket, uint64_t memory, struct okv_engine **ret_engine)
{
	struct okv_engine_options o;
	struct okv_manager_options m;
	okv_engine_options_init(&o);
	okv_manager_options_init(&m);
	o.log = say;
	o.socket_path = socket;
	if (!socket) {
		m.memory_bytes = memory;
		m.log = say;
		o.flags = OKV_ENGINE_EMBEDDED;
		o.embedded = &m;
	}
	return okv_engine_open(&o, ret_engine, &case_err);
}

int case_namespace(struct okv_engine *engine, const struct case_identity *identity,
		   const struct case_group *groups, uint32_t count, struct okv_namespace **ret_ns)
{
	struct okv_namespace_options o;
	struct okv_group_schema schema[CASE_GROUPS] = {0};
	struct okv_layer_schema layers[CASE_GROUPS][CASE_LAYERS] = {0};
	uint32_t order = 0;
	for (uint32_t g = 0; g < count; g++) {
		for (uint32_t l = 0; l < groups[g].layers; l++)
			layers[g][l] = (struct okv_layer_schema){order++, 1, {groups[g].bytes}};
		schema[g] = (struct okv_group_schema){
			.kind = groups[g].kind,
			.block_tokens = groups[g].block_tokens,
			.window_tokens = groups[g].window_tokens,
			.layer_count = groups[g].layers,
			.layout_tag = groups[g].tag ? groups[g].tag : "NHD",
			.layers = layers[g],
		};
	}
	okv_namespace_options_init(&o);
	o.model = identity->model;
	o.revision = identity->revision;
	o.dtype = identity->dtype;
	o.salt = identity->salt;
	if (identity->rank_slots)
		o.rank_slots = identity->rank_slots;
	if (identity->stages) {
		o.pipeline_stage = identity->stage;
		o.pipeline_stages = identity->stages;
	}
	o.group_count = count;
	o.groups = schema;
	return okv_namespace_open(engine, &o, ret_ns, &case_err);
}

uint64_t case_group_bytes(const struct case_rank *r, uint32_t group)
{
	return r->groups[group].layers * r->groups[group].bytes * r->pages;
}

uint8_t *case_page(const struct case_rank *r, uint32_t group, uint32_t layer, uint32_t page)
{
	return r->memory[group] + ((uint64_t)layer * r->pages + page) * r->groups[group].bytes;
}

int case_bind(struct case_rank *r, struct okv_namespace *ns, const struct case_group *groups,
	      uint32_t count, uint32_t slot, uint32_t pages, uint8_t *const *memory)
{
	struct okv_layer layers[CASE_GROUPS * CASE_LAYERS] = {0};
	struct okv_binding_options o;
	uint32_t n = 0;
	*r = (struct case_rank){.engine = r->engine, .ns = ns, .slot = slot, .pages = pages};
	r->group_count = count;
	for (uint32_t g = 0; g < count; g++) {
		r->groups[g] = groups[g];
		r->memory[g] = memory ? memory[g]
				      : mmap(NULL, case_group_bytes(r, g), PROT_READ | PROT_WRITE,
					     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		for (uint32_t l = 0; l < groups[g].layers; l++)
			layers[n++] = (struct okv_layer){
				.base = case_page(r, g, l, 0),
				.length = pages * groups[g].bytes,
				.page_stride = groups[g].bytes,
				.page_count = pages,
				.segment_count = 1,
				.segment_bytes = {groups[g].bytes},
			};
	}
	okv_binding_options_init(&o);
	o.rank_slot = slot;
	o.layer_count = n;
	o.layers = layers;
	o.copy_threads = 1;
	return okv_binding_register(ns, &o, &r->binding, &case_err);
}

int case_rank_open(struct case_rank *r, const char *socket, const struct case_group *groups,
		   uint32_t count, uint32_t pages)
{
	struct okv_namespace *ns = NULL;
	memset(r, 0, sizeof(*r));
	int rc = case_engine(socket, 64u << 20, &r->engine);
	if (!rc)
		rc = case_namespace(r->engine, &(struct case_identity){.model = "case"}, groups,
				    count, &ns);
	r->ns = ns;
	return rc ? rc : case_bind(r, ns, groups, count, 0, pages, NULL);
}

void case_rank_close(struct case_rank *r)
{
	okv_binding_unregister(r->binding);
	okv_namespace_close(r->ns);
	okv_engine_close(r->engine);
	for (uint32_t g = 0; g < r->group_count; g++)
		munmap(r->memory[g], case_group_bytes(r, g));
	memset(r, 0, sizeof(*r));
}

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 33) * 0xff51afd7ed558ccdull;
	x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ull;
	return x ^ x >> 33;
}

/* Eight bytes of a block, as a number. */
static uint64_t word(const struct case_rank *r, uint32_t group, uint32_t layer, const uint8_t *key,
		     uint64_t at)
{
	uint64_t sequence, block;
	memcpy(&sequence, key, 8);
	memcpy(&block, key + 8, 8);
	return mix(mix(sequence << 24 ^ block) ^
		   ((uint64_t)r->slot << 56 | (uint64_t)group << 48 | (uint64_t)layer << 32 | at));
}

void case_fill(struct case_rank *r, uint32_t group, const uint8_t *key, uint32_t page)
{
	for (uint32_t l = 0; l < r->groups[group].layers; l++) {
		uint64_t *to = (uint64_t *)(void *)case_page(r, group, l, page);
		for (uint64_t i = 0; i < r->groups[group].bytes / 8; i++)
			to[i] = word(r, group, l, key, i);
	}
}

uint64_t case_wrong(const struct case_rank *r, uint32_t group, const uint8_t *key, uint32_t page)
{
	uint64_t wrong = 0;
	for (uint32_t l = 0; l < r->groups[group].layers; l++) {
		const uint64_t *at = (const uint64_t *)(void *)case_page(r, group, l, page);
		for (uint64_t i = 0; i < r->groups[group].bytes / 8; i++)
			wrong += at[i] != word(r, group, l, key, i) ? 8 : 0;
	}
	return wrong;
}

void case_wipe(struct case_rank *r)
{
	for (uint32_t g = 0; g < r->group_count; g++)
		memset(r->memory[g], 0xee, case_group_bytes(r, g));
}

uint8_t *case_keys(uint64_t sequence, uint32_t first, uint32_t n)
{
	uint8_t *keys = malloc((size_t)n * CASE_KEY);
	if (!keys)
		case_die("no memory");
	for (uint32_t i = 0; i < n; i++) {
		uint64_t block = first + i;
		memcpy(keys + (size_t)i * CASE_KEY, &sequence, 8);
		memcpy(keys + (size_t)i * CASE_KEY + 8, &block, 8);
	}
	return keys;
}

int case_publish_start(struct case_rank *r, uint32_t group, const uint8_t *keys, uint32_t first,
		       uint32_t n, const uint32_t *pages, uint32_t flags, struct okv_op **ret_op)
{
	struct okv_publish_options o;
	struct okv_publish_group g = {
		.keys = {.group = group, .count = n, .key_bytes = CASE_KEY, .keys = keys},
		.first_position = first,
		.tokens = n * r->groups[group].block_tokens,
		.parent = first ? keys - CASE_KEY : NULL,
		.pages = pages,
	};
	okv_publish_options_init(&o);
	o.flags = flags;
	o.group_count = 1;
	o.groups = &g;
	return okv_publish_start(r->binding, &o, ret_op, &case_err);
}

int case_end(struct okv_op *op, struct okv_op_result *ret_result)
{
	struct okv_op_result result;
	int rc = okv_op_wait(op, -1, &result);
	if (rc)
		snprintf(case_err.text, sizeof(case_err.text), "%s", result.text);
	if (ret_result)
		*ret_result = result;
	okv_op_release(op);
	return rc;
}

int case_publish(struct case_rank *r, uint32_t group, const uint8_t *keys, uint32_t first,
		 uint32_t n, struct okv_op_result *ret_result)
{
	struct okv_op *op = NULL;
	uint32_t *pages = malloc(n * sizeof(*pages));
	if (!pages)
		case_die("no memory");
	for (uint32_t i = 0; i < n; i++) {
		pages[i] = i % r->pages;
		case_fill(r, group, keys + (size_t)i * CASE_KEY, pages[i]);
	}
	int rc = case_publish_start(r, group, keys, first, n, pages, 0, &op);
	free(pages);
	return rc ? rc : case_end(op, ret_result);
}

int case_lookup(struct okv_namespace *ns, const struct case_ask *asks, uint32_t count,
		uint32_t flags, uint32_t consumers, struct okv_lookup_result *ret_result,
		struct okv_lease **ret_lease)
{
	struct okv_keys keys[CASE_GROUPS];
	struct okv_lookup_options o;
	okv_lookup_options_init(&o);
	for (uint32_t i = 0; i < count; i++)
		keys[i] = (struct okv_keys){.group = asks[i].group,
					    .count = asks[i].count,
					    .key_bytes = CASE_KEY,
					    .keys = asks[i].keys};
	o.flags = flags;
	o.consumers = consumers;
	o.group_count = count;
	o.groups = keys;
	o.timeout_ms = 60000;
	if (ret_lease)
		*ret_lease = NULL;
	return okv_lookup(ns, &o, ret_result, ret_lease, &case_err);
}

int case_find(struct okv_namespace *ns, const uint8_t *keys, uint32_t n,
	      struct okv_lookup_result *ret_result, struct okv_lease **ret_lease)
{
	const struct case_ask ask = {0, n, keys};
	return case_lookup(ns, &ask, 1, 0, 1, ret_result, ret_lease);
}

uint32_t case_hit(struct okv_namespace *ns, uint32_t group, const uint8_t *keys, uint32_t n)
{
	struct okv_lookup_result found;
	const struct case_ask ask = {group, n, keys};
	case_must(case_lookup(ns, &ask, 1, OKV_LOOKUP_PEEK, 1, &found, NULL));
	return found.groups[0].count;
}

int case_restore(struct case_rank *r, struct okv_lease *lease,
		 const struct okv_lookup_result *found, uint32_t first_page,
		 struct okv_op_result *ret_result)
{
	struct okv_restore_options o;
	struct okv_restore_group groups[CASE_GROUPS] = {0};
	struct okv_op *op = NULL;
	uint32_t pages[OKV_MAX_BLOCKS];
	for (uint32_t i = 0; i < OKV_MAX_BLOCKS; i++)
		pages[i] = first_page + i;
	for (uint32_t g = 0; g < found->group_count; g++)
		groups[g] = (struct okv_restore_group){
			.group = found->groups[g].group,
			.first = found->groups[g].first,
			.count = found->groups[g].count,
			.pages = pages,
		};
	okv_restore_options_init(&o);
	o.group_count = found->group_count;
	o.groups = groups;
	int rc = okv_restore_start(r->binding, lease, &o, &op, &case_err);
	return rc ? rc : case_end(op, ret_result);
}

void case_show(const char *what, const struct okv_lookup_result *found)
{
	printf("%-52s tokens %" PRIu64 "%s", what, found->tokens,
	       found->shortened ? ", shortened" : "");
	for (uint32_t i = 0; i < found->group_count; i++)
		printf("  group %u: %u from %u", found->groups[i].group, found->groups[i].count,
		       found->groups[i].first);
	putchar('\n');
}
