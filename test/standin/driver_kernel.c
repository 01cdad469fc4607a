/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stand-in driver's copy kernel: kernels/gather_copy.cu group by group. A few threads have many
 * groups each and go on with them in turns, so that groups really draw their tickets and raise
 * their counters at the same time, those of other launches among them.
 */
#include "standin/standin_driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 3u
/* For so many kernels at a time; of more some wait. */
#define KERNELS 3u

struct piece {
	CUdeviceptr host;
	CUdeviceptr page;
	uint32_t bytes;
};

/* As a group has it in its registers. */
struct group {
	uint32_t block;
	uint32_t unit, column, first; /* its place in the list of all pieces */
	uint32_t ticket;
	uint32_t passed;
	bool counts, more, ended;
	struct piece now;
};

struct launch {
	const struct oki_gather *g;
	const struct oki_gather_row *rows[OKI_GATHER_TABLES];
	_Atomic uint32_t *counters, *tickets;
	_Atomic uint32_t *arrived; /* groups of a block past a column, block after block */
	uint32_t groups, groups_per_block;
};

struct share {
	const struct launch *launch;
	uint32_t first; /* and every THREADS-th group after it */
	uint64_t random;
	struct share *next; /* in the queue */
	uint32_t *left;	    /* of its launch, that have not ended */
};

static bool find_piece(const struct launch *l, struct group *at, struct piece *ret_piece)
{
	const struct oki_gather *g = l->g;
	for (; at->column < g->column_count; at->column++) {
		const struct oki_gather_column *c = &g->columns[at->column];
		uint32_t per_row = (c->bytes - 1) / g->tile + 1;
		uint32_t local = at->unit - at->first, rows = g->tables[c->table].count;
		if (local >= per_row * rows) {
			at->first += per_row * rows;
			continue;
		}
		const struct oki_gather_row *r = &l->rows[c->table][local / per_row];
		uint64_t offset = (uint64_t)(local % per_row) * g->tile, left = c->bytes - offset;
		*ret_piece = (struct piece){
			.host = r->host + c->block_offset + (uint64_t)r->inner * c->bytes + offset,
			.page = c->page0 + r->page * c->page_stride + offset,
			.bytes = left < g->tile ? (uint32_t)left : g->tile,
		};
		return true;
	}
	return false;
}

static uint32_t draw(const struct launch *l)
{
	return l->tickets ? atomic_fetch_add(l->tickets, 1) : 0;
}

static void raise_counter(const struct launch *l, uint32_t counter)
{
	atomic_fetch_add(l->counters + counter, 1);
	pthread_mutex_lock(&standin_lock);
	pthread_cond_broadcast(&standin_changed);
	pthread_mutex_unlock(&standin_lock);
}

static void start(const struct launch *l, uint32_t number, struct group *ret_group)
{
	*ret_group = (struct group){
		.block = number / l->groups_per_block,
		.unit = number,
		.counts = l->counters,
	};
	ret_group->ticket = draw(l);
	ret_group->more = find_piece(l, ret_group, &ret_group->now);
}

static void copy_piece(const struct oki_gather *g, const struct piece *p)
{
	uint8_t *page = standin_device(p->page, p->bytes);
	if (g->to_pages)
		memcpy(page, standin_mapped(p->host, p->bytes, STANDIN_READ), p->bytes);
	else
		memcpy(standin_mapped(p->host, p->bytes, STANDIN_WRITE), page, p->bytes);
}

/* The last group of a block counts for it. */
static void pass(const struct launch *l, const struct group *group, uint32_t column)
{
	uint32_t signal = l->g->columns[column].signal;
	_Atomic uint32_t *arrived = &l->arrived[group->block * OKI_GATHER_COLUMNS + column];
	if (signal && atomic_fetch_add(arrived, 1) + 1 == l->groups_per_block)
		raise_counter(l, signal);
}

/* One round of the kernel's loop. */
static void step(const struct launch *l, struct group *group)
{
	struct piece next = {0};
	if (group->counts && group->unit >= l->g->early) {
		raise_counter(l, 0);
		group->counts = false;
	}
	for (; group->passed < group->column; group->passed++)
		pass(l, group, group->passed);
	group->ended = !group->more;
	if (group->ended)
		return;
	if (l->tickets) {
		group->unit = group->ticket - l->g->first_ticket + l->groups;
		group->ticket = draw(l);
	} else {
		group->unit += l->groups;
	}
	group->more = find_piece(l, group, &next);
	copy_piece(l->g, &group->now);
	group->now = next;
}

static void run_share(struct share *share)
{
	const struct launch *l = share->launch;
	struct group *groups = calloc(l->groups, sizeof(*groups));
	if (!groups)
		standin_stop("no memory");
	standin_delay(&share->random, 3, 400);
	for (uint32_t i = share->first; i < l->groups; i += THREADS)
		start(l, i, &groups[i]);
	for (bool some = true; some;) {
		some = false;
		for (uint32_t i = share->first; i < l->groups; i += THREADS) {
			if (groups[i].ended)
				continue;
			standin_delay(&share->random, 128, 50);
			step(l, &groups[i]);
			some |= !groups[i].ended;
		}
	}
	free(groups);
}

/* Threads for all launches of the process: one for each share would be a hundred thousand. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t queued, ended;
	struct share *queue;
} pool = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL};

static void *serve(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&pool.lock);
	for (;;) {
		struct share *share = pool.queue;
		if (!share) {
			pthread_cond_wait(&pool.queued, &pool.lock);
			continue;
		}
		pool.queue = share->next;
		pthread_mutex_unlock(&pool.lock);
		run_share(share);
		pthread_mutex_lock(&pool.lock);
		if (--*share->left == 0)
			pthread_cond_broadcast(&pool.ended);
	}
	return NULL;
}

static void start_pool(void)
{
	for (uint32_t i = 0; i < KERNELS * THREADS; i++) {
		pthread_t thread;
		if (pthread_create(&thread, NULL, serve, NULL) != 0)
			standin_stop("no thread for a kernel");
		pthread_detach(thread);
	}
}

/* Returns when all shares of a launch have ended. */
static void run_shares(struct share *shares, uint32_t count)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	uint32_t left = count;
	pthread_once(&once, start_pool);
	pthread_mutex_lock(&pool.lock);
	for (uint32_t i = 0; i < count; i++) {
		shares[i].left = &left;
		shares[i].next = pool.queue;
		pool.queue = &shares[i];
	}
	pthread_cond_broadcast(&pool.queued);
	while (left)
		pthread_cond_wait(&pool.ended, &pool.lock);
	pthread_mutex_unlock(&pool.lock);
}

static const struct oki_gather_row *rows_of(const struct oki_gather *gather, uint32_t number)
{
	if (number >= OKI_GATHER_TABLES)
		standin_stop("no table %u", number);
	const struct oki_gather_table *table = &gather->tables[number];
	if (table->rows)
		return (const void *)standin_device((CUdeviceptr)(uintptr_t)table->rows,
						    table->count * sizeof(*table->rows));
	if (table->first + table->count > OKI_GATHER_INLINE_ROWS)
		standin_stop("%u rows without a table", table->count);
	return gather->few + table->first;
}

/* Nobody keeps the pace here, but what a kernel would look at is there. */
static void look_at_pace(const struct oki_gather *g)
{
	if (g->to_pages && g->pace)
		standin_stop("a restore at a pace");
	if (!g->pace && (g->until || g->until_before || g->restores || g->beside))
		standin_stop("no pace, and still something to keep it");
	if (g->until)
		standin_device((CUdeviceptr)(uintptr_t)g->until, sizeof(*g->until));
	if (g->until_before)
		standin_device((CUdeviceptr)(uintptr_t)g->until_before, sizeof(*g->until_before));
	if (!g->restores != !g->beside)
		standin_stop("a kernel that looks, or is looked at, alone");
	if (g->restores) {
		standin_mapped((CUdeviceptr)(uintptr_t)g->restores, sizeof(*g->restores),
			       STANDIN_READ);
		standin_device((CUdeviceptr)(uintptr_t)g->beside, sizeof(*g->beside));
	}
}

void standin_gather(const struct oki_gather *gather, uint32_t lanes, uint32_t blocks,
		    uint32_t block_threads, uint64_t *random)
{
	struct launch launch = {
		.g = gather,
		.arrived = calloc((size_t)blocks * OKI_GATHER_COLUMNS, sizeof(launch.arrived[0])),
		.groups = blocks * (block_threads / lanes),
		.groups_per_block = block_threads / lanes,
	};
	if (!launch.arrived)
		standin_stop("no memory");
	if (gather->column_count > OKI_GATHER_COLUMNS)
		standin_stop("a launch of %u columns", gather->column_count);
	for (uint32_t c = 0; c < gather->column_count; c++)
		launch.rows[gather->columns[c].table] = rows_of(gather, gather->columns[c].table);
	if (gather->counters)
		launch.counters =
			(void *)standin_device((CUdeviceptr)(uintptr_t)gather->counters, 4);
	if (gather->tickets)
		launch.tickets = (void *)standin_device((CUdeviceptr)(uintptr_t)gather->tickets, 4);
	look_at_pace(gather);
	struct share shares[THREADS];
	for (uint32_t i = 0; i < THREADS; i++)
		shares[i] = (struct share){.launch = &launch,
					   .first = i,
					   .random = *random ^ (i + 1) * 0x9e3779b97f4a7c15ull};
	run_shares(shares, THREADS);
	look_at_pace(gather);
	free((void *)launch.arrived);
}
