/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How Python keeps an object alive for as long as the library uses it. The library counts its uses
 * here, from its own threads and without the interpreter's lock; Python asks, and drops its
 * references when the count is back. The counter belongs to both sides: the last one frees it, so a
 * use that ends after the interpreter did is safe.
 */
#include <stdatomic.h>
#include <stdlib.h>

struct okv_py_hold {
	atomic_int count; /* 1 for Python, and 1 for each use by the library */
};

static struct okv_py_hold *okv_py_hold_new(void)
{
	struct okv_py_hold *hold = malloc(sizeof(*hold));

	if (hold)
		atomic_init(&hold->count, 1);
	return hold;
}

static int okv_py_hold_is_used(const struct okv_py_hold *hold)
{
	return atomic_load(&((struct okv_py_hold *)hold)->count) > 1;
}

static void okv_py_hold_drop(struct okv_py_hold *hold)
{
	if (atomic_fetch_sub(&hold->count, 1) == 1)
		free(hold);
}

static void okv_py_retain(void *object)
{
	struct okv_py_hold *hold = object;

	atomic_fetch_add(&hold->count, 1);
}

static void okv_py_release(void *object)
{
	okv_py_hold_drop(object);
}

static void okv_py_hold_set(struct okv_owner *owner, struct okv_py_hold *hold)
{
	owner->object = hold;
	owner->retain = okv_py_retain;
	owner->release = okv_py_release;
}
