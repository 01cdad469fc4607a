/* SPDX-License-Identifier: Apache-2.0 */
/* Wrong calls: the code and a text, nothing changed, and everything works afterwards. */
#include "support/refused.h"

#include <stdlib.h>
#include <sys/mman.h>

void kv_refused_text(const struct okv_error *err, int code, const char *call)
{
	ck_assert_msg(err->status == code, "%s: the error says %s", call,
		      okv_status_name(err->status));
	ck_assert_msg(err->text[0] != 0, "%s: no text", call);
	ck_assert_msg(memchr(err->text, 0, sizeof(err->text)) != NULL, "%s: endless text", call);
	ck_assert_msg(strcmp(okv_stage_name(err->stage), "?") != 0, "%s: stage %d", call,
		      err->stage);
}

void kv_set_number(void *object, const struct kv_number *n)
{
	/* Little-endian: the low bytes come first. */
	memcpy((char *)object + n->offset, &n->value, n->bytes);
}

void *kv_edge(size_t bytes)
{
	size_t page = 4096, whole = (bytes + page - 1) / page * page;
	char *at = mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			0);
	ck_assert(at != MAP_FAILED);
	ck_assert_int_eq(mprotect(at + whole, page, PROT_NONE), 0);
	return at + whole - bytes;
}

/* What ended is given back in the Manager's own time. */
static bool is_idle(const struct okv_manager_status *now)
{
	return !now->ops_preparing && !now->ops_granted && !now->ops_active;
}

void kv_scene_look(struct kv_scene *s)
{
	kv_until((s->status = kv_local_status(&s->local), is_idle(&s->status)));
	s->stats = kv_stats(s->engine);
}

static bool is_settled(const struct kv_scene *s, uint64_t leases, uint64_t bytes_pinned)
{
	struct okv_manager_status now = kv_local_status(&s->local);
	return now.leases == leases && now.bytes_pinned == bytes_pinned && is_idle(&now);
}

void kv_scene_settle(struct kv_scene *s)
{
	kv_until(is_settled(s, 0, 0));
	kv_scene_look(s);
}

void kv_scene_open(struct kv_scene *s)
{
	struct okv_op_result r;
	memset(s, 0, sizeof(*s));
	const struct okv_manager_options o = kv_local_options(16u << 20);
	kv_local_start(&s->local, &o, 0, &(struct kv_shape){0});
	s->engine = s->local.engine;
	s->ns = s->local.ns;
	s->other = kv_engine_connect(s->local.socket_path, 0);
	s->other_ns = kv_namespace(s->other, &(struct kv_shape){0});
	kv_rank_open(&s->rank, s->ns, &(struct kv_shape){0}, 0);
	ck_assert_int_eq(kv_publish(&s->rank, 1, 0, KV_SCENE_BLOCKS, NULL, &r), 0);
	s->next_seq = 2;
	kv_scene_settle(s);
}

#define SAME(of, field)                                                                  \
	ck_assert_msg(before.of.field == s->of.field, "%s was %llu and is %llu", #field, \
		      (unsigned long long)before.of.field, (unsigned long long)s->of.field)

static void same_counters(struct kv_scene *s)
{
	struct kv_scene before = *s;
	kv_scene_look(s);
	SAME(stats, restores_started);
	SAME(stats, restores_failed);
	SAME(stats, publishes_started);
	SAME(stats, publishes_failed);
	SAME(stats, lookups);
	SAME(stats, ops_running);
	SAME(stats, bindings);
	SAME(status, sessions);
	SAME(status, namespaces);
	SAME(status, bindings);
	SAME(status, bytes_used);
	SAME(status, bytes_pinned);
	SAME(status, blocks);
	SAME(status, blocks_partial);
	SAME(status, leases);
	SAME(status, ops_quarantined);
	SAME(status, ops_refused);
}

static void round_trip(struct kv_scene *s, uint64_t seq, bool publish)
{
	struct okv_op_result r;
	struct okv_lease *lease;
	uint32_t *pages = kv_pages(&s->rank, KV_SCENE_BLOCKS, 50, 3);
	if (publish)
		ck_assert_int_eq(kv_publish(&s->rank, seq, 0, KV_SCENE_BLOCKS, NULL, &r), 0);
	kv_poison(&s->rank);
	ck_assert_uint_eq(kv_lookup(s->ns, seq, KV_SCENE_BLOCKS, 1, &lease), KV_SCENE_BLOCKS);
	ck_assert_int_eq(kv_restore(&s->rank, lease, 0, KV_SCENE_BLOCKS, pages, 0, &r), 0);
	for (uint32_t i = 0; i < KV_SCENE_BLOCKS; i++)
		ck_assert_uint_eq(kv_wrong(&s->rank, seq, i, pages + i), 0);
	ck_assert_uint_eq(kv_canaries_broken(&s->rank), 0);
	okv_lease_release(lease);
	free(pages);
}

void kv_scene_check(struct kv_scene *s)
{
	same_counters(s);
	round_trip(s, 1, false);
	round_trip(s, s->next_seq++, true);
	kv_until(is_settled(s, s->status.leases, s->status.bytes_pinned));
	kv_scene_look(s);
}

void kv_scene_close(struct kv_scene *s)
{
	kv_rank_close(&s->rank);
	okv_namespace_close(s->other_ns);
	okv_engine_close(s->other);
	kv_local_stop(&s->local);
}
