/* SPDX-License-Identifier: Apache-2.0 */
/* What a binding holds on to: tensors that must be there, leases that must be released. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "support/local.h"
#include "support/suite.h"
#include "support/tensors.h"

#define PAGE 4096u

static struct okv_engine *engine;

static void setup(void)
{
	engine = kv_engine_embedded(64u << 20, 0);
}

static void teardown(void)
{
	okv_engine_close(engine);
}

static struct okv_namespace *open_namespace(void)
{
	struct okv_layer_schema layer = {.segment_count = 1, .segment_bytes = {PAGE}};
	const struct okv_group_schema group = {.kind = OKV_GROUP_FULL,
					       .block_tokens = 16,
					       .layer_count = 1,
					       .layout_tag = "NHD",
					       .layers = &layer};
	return kv_groups_open(engine, &group, 1, 1);
}

static int try_layer(struct okv_namespace *ns, const struct okv_layer *layer, struct okv_error *err)
{
	struct okv_binding_options o;
	struct okv_binding *binding = NULL;
	okv_binding_options_init(&o);
	o.layer_count = 1;
	o.layers = layer;
	int rc = okv_binding_register(ns, &o, &binding, err);
	okv_binding_unregister(binding);
	return rc;
}

static void accepted(struct okv_namespace *ns, const struct okv_layer *layer)
{
	kv_ok(try_layer(ns, layer, kv_err));
}

static void refused(struct okv_namespace *ns, const struct okv_layer *layer)
{
	struct okv_error err = {0};
	ck_assert_int_eq(try_layer(ns, layer, &err), OKV_E_INVAL);
	ck_assert_uint_gt(strlen(err.text), 0);
}

/* Tensors that are not there would be met by the first copy, in the middle of an operation. */
START_TEST(memory_that_is_not_there_is_refused)
{
	struct okv_namespace *ns = open_namespace();
	const size_t page = PAGE, bytes = 16 * page;
	uint8_t *memory =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(memory, MAP_FAILED);
	struct okv_layer layer = {.base = memory,
				  .length = bytes,
				  .page_stride = page,
				  .page_count = 16,
				  .segment_count = 1,
				  .segment_bytes = {PAGE}};
	/* Two mappings side by side are as good as one. */
	ck_assert_int_eq(madvise(memory, 8 * page, MADV_DONTFORK), 0);
	accepted(ns, &layer);
	ck_assert_int_eq(mprotect(memory + 5 * page, page, PROT_READ), 0);
	refused(ns, &layer);
	ck_assert_int_eq(munmap(memory + 5 * page, page), 0);
	refused(ns, &layer);
	layer.base = (void *)0x10000;
	refused(ns, &layer);
	/* Up to the hole, and behind it. */
	layer.base = memory;
	layer.length = 5 * page;
	layer.page_count = 5;
	accepted(ns, &layer);
	layer.base = memory + 6 * page;
	accepted(ns, &layer);
	munmap(memory, bytes);
	okv_namespace_close(ns);
}
END_TEST

START_TEST(a_binding_whose_memory_went_is_not_resumed)
{
	struct okv_namespace *ns = open_namespace();
	const size_t bytes = 16 * PAGE;
	void *memory =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(memory, MAP_FAILED);
	const struct okv_layer layer = {.base = memory,
					.length = bytes,
					.page_stride = PAGE,
					.page_count = 16,
					.segment_count = 1,
					.segment_bytes = {PAGE}};
	struct okv_binding_options o;
	struct okv_binding *binding;
	okv_binding_options_init(&o);
	o.layer_count = 1;
	o.layers = &layer;
	kv_ok(okv_binding_register(ns, &o, &binding, kv_err));
	ck_assert_int_eq(okv_binding_quiesce(binding, -1), 0);
	ck_assert_int_eq(munmap(memory, bytes), 0);
	ck_assert_int_eq(okv_binding_resume(binding), OKV_E_INVAL);
	ck_assert_ptr_eq(mmap(memory, bytes, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
			 memory);
	ck_assert_int_eq(okv_binding_resume(binding), 0);
	okv_binding_unregister(binding);
	okv_namespace_close(ns);
	munmap(memory, bytes);
}
END_TEST

/* A spent lease pins nothing, but its handle keeps its place: the text says what to do. */
START_TEST(every_lease_handle_keeps_a_place)
{
	static struct okv_lease *leases[OKV_MAX_LEASES];
	const struct kv_shape shape = {.pages = 16};
	struct okv_namespace *ns = kv_namespace(engine, &shape);
	struct okv_lookup_result found;
	struct okv_op_result r;
	struct okv_error err = {0};
	struct kv_rank rank;
	kv_rank_open(&rank, ns, &shape, 0);
	ck_assert_int_eq(kv_publish(&rank, 1, 0, 1, NULL, &r), 0);
	for (uint32_t i = 0; i < OKV_MAX_LEASES; i++) {
		ck_assert_uint_eq(kv_lookup(ns, 1, 1, 1, &leases[i]), 1);
		ck_assert_int_eq(kv_restore(&rank, leases[i], 0, 1, (uint32_t[]){3}, 0, &r), 0);
	}
	ck_assert_uint_eq(kv_stats(engine).leases, OKV_MAX_LEASES);
	uint8_t *keys = kv_keys(1, 0, 1);
	struct okv_keys k = {.count = 1, .key_bytes = KV_KEY_BYTES, .keys = keys};
	struct okv_lookup_options o;
	struct okv_lease *none = NULL;
	okv_lookup_options_init(&o);
	o.group_count = 1;
	o.groups = &k;
	ck_assert_int_eq(okv_lookup(ns, &o, &found, &none, &err), OKV_E_AGAIN);
	ck_assert_ptr_nonnull(strstr(err.text, "release"));
	okv_lease_release(leases[0]);
	kv_until(okv_lookup(ns, &o, &found, &leases[0], &err) == 0);
	for (uint32_t i = 0; i < OKV_MAX_LEASES; i++)
		okv_lease_release(leases[i]);
	ck_assert_uint_eq(kv_stats(engine).leases, 0);
	free(keys);
	kv_rank_close(&rank);
	okv_namespace_close(ns);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("memory");
	TCase *t = tcase_create("memory");
	tcase_set_timeout(t, 120);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, memory_that_is_not_there_is_refused);
	tcase_add_test(t, a_binding_whose_memory_went_is_not_resumed);
	tcase_add_test(t, every_lease_handle_keeps_a_place);
	suite_add_tcase(s, t);
	return kv_suite_run(s);
}
