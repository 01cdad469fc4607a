/* SPDX-License-Identifier: Apache-2.0 */
/* An honest engine beside the ones that are not. */
#include "process/honest.h"

#include <check.h>
#include <signal.h>
#include <stdlib.h>

static const char *const args[] = {"--memory", "64M", "--numa", "off", NULL};
/* Every field given: raw_identity() has no defaults. */
const struct kv_shape honest_shape = {.layers = 4,
				      .segments = 2,
				      .segment_bytes = 512,
				      .pages = 64,
				      .pages_per_block = 1,
				      .block_tokens = 16,
				      .rank_slots = 1,
				      .layout_tag = "NHD"};

static void restore_shared(struct okv_namespace *ns, struct kv_rank *rank, uint32_t round)
{
	struct okv_lease *lease;
	uint32_t *pages = kv_pages(rank, HONEST_BLOCKS, round, 3);
	kv_poison(rank);
	ck_assert_uint_eq(kv_lookup(ns, HONEST_SEQ, HONEST_BLOCKS, 1, &lease), HONEST_BLOCKS);
	struct okv_op_result result = {.status = 0};
	int rc = kv_restore(rank, lease, 0, HONEST_BLOCKS, pages, 0, &result);
	ck_assert_msg(rc == 0, "%s: %s", okv_status_name(rc), result.text);
	for (uint32_t i = 0; i < HONEST_BLOCKS; i++)
		ck_assert_uint_eq(kv_wrong(rank, HONEST_SEQ, i, pages + i), 0);
	okv_lease_release(lease);
	free(pages);
}

void honest_play(void)
{
	char line[32];
	struct okv_engine *e = kv_engine_connect(child_socket, 0);
	struct okv_namespace *ns = kv_namespace(e, &honest_shape);
	struct kv_rank rank;
	kv_rank_open(&rank, ns, &honest_shape, 0);
	ck_assert_int_eq(kv_publish(&rank, HONEST_SEQ, 0, HONEST_BLOCKS, NULL, NULL), 0);
	child_say("here");
	for (uint32_t round = 0;; round++) {
		restore_shared(ns, &rank, round);
		if (!child_asked())
			continue;
		if (!child_hear(line, sizeof(line)))
			break;
		restore_shared(ns, &rank, round + 1);
		child_say("exact");
	}
	ck_assert_uint_eq(kv_canaries_broken(&rank), 0);
	ck_assert_int_eq(okv_engine_state(e), 0);
	kv_rank_close(&rank);
	okv_namespace_close(ns);
	okv_engine_close(e);
}

static bool honest_alone(const struct okv_manager_status *s)
{
	return s->sessions == 1 && s->bindings == 1;
}

void stage_open(struct stage *s)
{
	kv_manager_start(&s->m, args);
	manager_drain(&s->m);
	child_start(&s->honest, "honest", s->m.socket_path, NULL);
	child_wait(&s->honest, "here");
	kv_manager_wait(&s->m, honest_alone, "the honest engine");
	s->fds = process_fds(s->m.pid);
}

void stage_check(struct stage *s)
{
	child_tell(&s->honest, "how is it?");
	child_wait(&s->honest, "exact");
}

void stage_close(struct stage *s, uint64_t most_quarantined)
{
	stage_check(s);
	kv_manager_wait(&s->m, honest_alone, "the others gone");
	struct okv_manager_status st = kv_manager_status(&s->m);
	ck_assert_uint_le(st.ops_quarantined, most_quarantined);
	process_await_fds(s->m.pid, s->fds + (uint32_t)st.sessions_retained * 3);
	child_end(&s->honest);
	ck_assert_int_eq(kv_manager_kill(&s->m, SIGTERM), 0);
	kv_manager_clean(&s->m);
}

void run_evil(const char *role, const char *arg, uint64_t most_quarantined)
{
	struct stage s;
	struct child evil;
	stage_open(&s);
	child_start(&evil, role, s.m.socket_path, arg);
	child_wait(&evil, "done");
	child_end(&evil);
	stage_close(&s, most_quarantined);
}
