/* SPDX-License-Identifier: Apache-2.0 */
/* [B] A bounded ring of log lines: the newest are kept, the lost are counted. */
#include "base/log_ring.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/cond.h"
#include "base/error.h"
#include "base/fd.h"

struct okv_log_ring {
	_Atomic uint32_t refs;
	pid_t pid;
	pthread_mutex_t lock; /* everything below; held for the copy of a line */
	pthread_cond_t changed;
	int fd; /* eventfd, readable while there are lines; -1: none */
	bool ended;
	uint32_t first, count, max;
	struct okv_log_line lines[];
};

struct okv_log_ring *oki_log_ring_new(uint32_t max_lines)
{
	struct okv_log_ring *ring = malloc(sizeof(*ring) + max_lines * sizeof(ring->lines[0]));
	if (!ring)
		return NULL;
	*ring = (struct okv_log_ring){.pid = getpid(), .fd = -1, .max = max_lines};
	atomic_init(&ring->refs, 1);
	pthread_mutex_init(&ring->lock, NULL);
	oki_cond_init(&ring->changed);
	return ring;
}

void oki_log_ring_get(struct okv_log_ring *ring)
{
	atomic_fetch_add_explicit(&ring->refs, 1, memory_order_relaxed);
}

void oki_log_ring_put(struct okv_log_ring *ring)
{
	if (atomic_fetch_sub(&ring->refs, 1) != 1)
		return;
	oki_fd_close(&ring->fd);
	pthread_cond_destroy(&ring->changed);
	pthread_mutex_destroy(&ring->lock);
	free(ring);
}

bool oki_log_ring_forked(const struct okv_log_ring *ring)
{
	return ring->pid != getpid();
}

/* With the lock held. */
static struct okv_log_line *line_at(struct okv_log_ring *ring, uint32_t i)
{
	return &ring->lines[(ring->first + i) % ring->max];
}

static void copy_line(struct okv_log_line *to, const struct okv_log_line *from)
{
	size_t length = strnlen(from->text, sizeof(from->text) - 1);
	to->time_ns = from->time_ns;
	to->lost = from->lost;
	to->level = from->level;
	to->reserved = 0;
	memcpy(to->text, from->text, length);
	to->text[length] = 0;
}

void oki_log_ring_write(struct okv_log_ring *ring, const struct okv_log_line *line)
{
	if (oki_log_ring_forked(ring))
		return;
	pthread_mutex_lock(&ring->lock);
	if (!ring->ended) {
		uint64_t lost = 0;
		if (ring->count == ring->max) {
			lost = line_at(ring, 0)->lost + 1;
			ring->first = (ring->first + 1) % ring->max;
			ring->count--;
		}
		struct okv_log_line *to = line_at(ring, ring->count++);
		copy_line(to, line);
		to->lost = 0;
		line_at(ring, 0)->lost += lost;
		const uint64_t one = 1;
		while (ring->fd >= 0 && ring->count == 1 &&
		       write(ring->fd, &one, sizeof(one)) < 0 && errno == EINTR)
			;
		pthread_cond_signal(&ring->changed);
	}
	pthread_mutex_unlock(&ring->lock);
}

/* With the lock held, and a line there. */
static void take_line(struct okv_log_ring *ring, struct okv_log_line *ret_line)
{
	uint64_t count;
	copy_line(ret_line, line_at(ring, 0));
	ring->first = (ring->first + 1) % ring->max;
	ring->count--;
	while (ring->fd >= 0 && ring->count == 0 && read(ring->fd, &count, sizeof(count)) < 0 &&
	       errno == EINTR)
		;
}

bool oki_log_ring_wait(struct okv_log_ring *ring, struct okv_log_line *ret_line)
{
	pthread_mutex_lock(&ring->lock);
	while (!ring->count && !ring->ended)
		oki_cond_wait(&ring->changed, &ring->lock, UINT64_MAX);
	bool any = ring->count != 0;
	if (any)
		take_line(ring, ret_line);
	pthread_mutex_unlock(&ring->lock);
	return any;
}

void oki_log_ring_end(struct okv_log_ring *ring)
{
	pthread_mutex_lock(&ring->lock);
	ring->ended = true;
	pthread_cond_broadcast(&ring->changed);
	pthread_mutex_unlock(&ring->lock);
}

int okv_log_ring_create(uint32_t max_lines, struct okv_log_ring **ret_ring, struct okv_error *err)
{
	if (!ret_ring)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS, "ret_ring is NULL");
	if (!max_lines || max_lines > OKV_MAX_LOG_LINES)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"max_lines is %u; 1 to %u are possible", max_lines,
				OKV_MAX_LOG_LINES);
	struct okv_log_ring *ring = oki_log_ring_new(max_lines);
	if (!ring)
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_ARGUMENTS, "no memory for a log ring");
	ring->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (ring->fd < 0) {
		int os = errno;
		oki_log_ring_put(ring);
		return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_ARGUMENTS, os, "eventfd");
	}
	*ret_ring = ring;
	return 0;
}

int okv_log_ring_fd(struct okv_log_ring *ring)
{
	return !ring || oki_log_ring_forked(ring) ? -1 : ring->fd;
}

int okv_log_ring_read(struct okv_log_ring *ring, struct okv_log_line *lines, uint32_t max,
		      uint32_t *ret_count)
{
	if (!ring || !lines || !max || !ret_count)
		return OKV_E_INVAL;
	if (oki_log_ring_forked(ring))
		return OKV_E_FORKED;
	uint32_t n = 0;
	pthread_mutex_lock(&ring->lock);
	while (n < max && ring->count)
		take_line(ring, &lines[n++]);
	pthread_mutex_unlock(&ring->lock);
	*ret_count = n;
	return 0;
}

void okv_log_ring_close(struct okv_log_ring *ring)
{
	if (!ring || oki_log_ring_forked(ring))
		return;
	oki_log_ring_end(ring);
	pthread_mutex_lock(&ring->lock);
	oki_fd_close(&ring->fd);
	pthread_mutex_unlock(&ring->lock);
	oki_log_ring_put(ring);
}
