/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An owner's retain() takes a lock of the caller's that another thread holds around its calls of
 * the library, as Python's interpreter lock is held. Do two registrations wait for each other for
 * ever?
 */
#include "cases/case.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

static pthread_mutex_t interpreter = PTHREAD_MUTEX_INITIALIZER;
static struct case_rank r;
static uint8_t *memory;
static _Atomic bool is_retaining;
static _Atomic int done;

static void retain(void *object)
{
	(void)object;
	is_retaining = true;
	/* For the other thread to take the lock first. */
	case_pause(0.3);
	pthread_mutex_lock(&interpreter);
	pthread_mutex_unlock(&interpreter);
}

static void release(void *object)
{
	(void)object;
}

static void bind_at(uint8_t *at, bool has_owner)
{
	struct okv_binding_options o;
	struct okv_binding *binding;
	struct okv_error err;
	struct okv_layer layer = {
		.base = at,
		.length = 64 * 4096,
		.page_stride = 4096,
		.page_count = 64,
		.segment_count = 1,
		.segment_bytes = {4096},
	};
	if (has_owner)
		layer.owner = (struct okv_owner){&r, retain, release};
	okv_binding_options_init(&o);
	o.layer_count = 1;
	o.layers = &layer;
	o.copy_threads = 1;
	int rc = okv_binding_register(r.ns, &o, &binding, &err);
	printf("registered %s an owner: %s\n", has_owner ? "with" : "without", okv_status_name(rc));
	done++;
}

static void *without_lock(void *arg)
{
	bind_at(memory, true);
	return arg;
}

static void *with_lock(void *arg)
{
	case_until(is_retaining, 10);
	pthread_mutex_lock(&interpreter);
	bind_at(memory + (1u << 20), false);
	pthread_mutex_unlock(&interpreter);
	return arg;
}

int main(void)
{
	const struct case_group group = {OKV_GROUP_FULL, 16, 0, 1, 4096, NULL};
	pthread_t a, b;
	case_must(case_engine(NULL, 64u << 20, &r.engine));
	case_must(case_namespace(r.engine, &(struct case_identity){.model = "case"}, &group, 1,
				 &r.ns));
	memory = mmap(NULL, 2u << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_create(&a, NULL, without_lock, NULL);
	pthread_create(&b, NULL, with_lock, NULL);
	bool is_fine = case_until(done == 2, 5);
	puts(is_fine ? "both returned" : "they wait for each other");
	fflush(stdout);
	_exit(!is_fine);
}
