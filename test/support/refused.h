/* SPDX-License-Identifier: Apache-2.0 */
/* Wrong calls: the code and a text, nothing changed, and everything works afterwards. */
#ifndef TEST_SUPPORT_REFUSED_H
#define TEST_SUPPORT_REFUSED_H

#include <check.h>
#include <stddef.h>
#include <string.h>

#include "support/local.h"

/* The call fails with this code, says why in kv_err, and does the same where kv_err is NULL. */
#define kv_refused(code, call)                                                                   \
	do {                                                                                     \
		struct okv_error err_ = {.status = 1};                                           \
		struct okv_error *kv_err = &err_;                                                \
		int rc_ = (call);                                                                \
		ck_assert_msg(rc_ == (code), "%s: %s, not %s (%s)", #call, okv_status_name(rc_), \
			      okv_status_name(code), rc_ ? err_.text : "");                      \
		kv_refused_text(&err_, code, #call);                                             \
		kv_err = NULL;                                                                   \
		ck_assert_int_eq((call), (code));                                                \
		(void)kv_err;                                                                    \
	} while (0)
void kv_refused_text(const struct okv_error *err, int code, const char *call);

/* A pointer that no call may write on failure. */
#define KV_UNTOUCHED(type) ((type *)(uintptr_t)0x5a5a5a50u)

/* One number of a struct, and the status that it leads to. */
struct kv_number {
	size_t offset;
	size_t bytes;
	uint64_t value;
	int status;
};
#define KV_NUMBER(type, field, value, status)                                    \
	{                                                                        \
		offsetof(type, field), sizeof(((type *)0)->field), value, status \
	}
void kv_set_number(void *object, const struct kv_number *n);

/* Memory that ends where nothing may be read: zeros, never given back. bytes: a multiple of 8. */
void *kv_edge(size_t bytes);

/* A Manager with two engines; one has a rank whose sequence 1 is stored. */
struct kv_scene {
	struct kv_local local;
	struct okv_engine *engine, *other; /* engine and ns are local's */
	struct okv_namespace *ns, *other_ns;
	struct kv_rank rank;
	struct okv_engine_stats stats;
	struct okv_manager_status status;
	uint64_t next_seq;
};
#define KV_SCENE_BLOCKS 4u

void kv_scene_open(struct kv_scene *scene);
/* Wait until no operation runs; the counters are right as they are then. */
void kv_scene_look(struct kv_scene *scene);
/* Wait until no lease is left, then look. */
void kv_scene_settle(struct kv_scene *scene);
/* Counters are as at the last look, open or check, and a new sequence makes the round trip. */
void kv_scene_check(struct kv_scene *scene);
void kv_scene_close(struct kv_scene *scene);

#endif
