/* SPDX-License-Identifier: Apache-2.0 */
/* [B] How the host device finds the start of a chunk and copies it. */
#include "device/host_pool.h"

#include <string.h>

#include "device/rect.h"

#ifdef __x86_64__
#include <emmintrin.h>

/* Below this the unaligned ends cost more than the non-temporal stores save. */
#define STORE_AROUND_MIN 256u

static void copy_non_temporal(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
	uint64_t head = -(uintptr_t)to & 63;
	if (bytes < STORE_AROUND_MIN) {
		memcpy(to, from, bytes);
		return;
	}
	memcpy(to, from, head);
	uint64_t at = head;
	for (; at + 64 <= bytes; at += 64) {
		const __m128i *in = (const __m128i *)(const void *)(from + at);
		__m128i *out = (__m128i *)(void *)(to + at);
		__m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
		__m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
		_mm_stream_si128(out, a);
		_mm_stream_si128(out + 1, b);
		_mm_stream_si128(out + 2, c);
		_mm_stream_si128(out + 3, d);
	}
	memcpy(to + at, from + at, bytes - at);
}

/* Non-temporal stores are unordered: without a fence a mark could be seen before the bytes. */
static void fence_non_temporal(void)
{
	_mm_sfence();
}
#else
static void copy_non_temporal(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
	memcpy(to, from, bytes);
}

static void fence_non_temporal(void)
{
}
#endif

static uint64_t run_bytes(const struct oki_host_work *work, uint32_t run)
{
	return oki_run_rows(&work->runs[run]) * work->row_bytes;
}

uint64_t oki_host_work_bytes(const struct oki_host_work *work, uint64_t limit)
{
	uint64_t sum = 0;
	for (uint32_t r = 0; r < work->run_count && sum < limit; r++)
		sum += run_bytes(work, r);
	return sum;
}

uint64_t oki_host_advance(const struct oki_host_work *work, struct oki_host_cursor *cursor,
			  uint64_t bytes)
{
	uint64_t left = bytes;
	while (cursor->run < work->run_count) {
		uint64_t rest = run_bytes(work, cursor->run) - cursor->pos;
		if (rest > left) {
			cursor->pos += left;
			return bytes;
		}
		left -= rest;
		cursor->run++;
		cursor->pos = 0;
	}
	return bytes - left;
}

/* Bytes [from, from + bytes) of a rectangle. */
static void copy_rect(const struct oki_host_work *work, const struct oki_rect *r, uint64_t from,
		      uint64_t bytes)
{
	bool to_pages = work->direction == OKI_TO_PAGES;
	uint64_t row = from / r->width, skip = from % r->width;
	uint64_t o = row / r->inner, j = row % r->inner;
	while (bytes > 0) {
		uint8_t *host = r->host + o * r->host_outer + j * r->host_inner + skip;
		uint8_t *page = r->device + o * r->device_outer + j * r->device_inner + skip;
		uint64_t n = r->width - skip;
		if (n > bytes)
			n = bytes;
		uint8_t *to = to_pages ? page : host;
		const uint8_t *of = to_pages ? host : page;
		if (work->past_cache)
			copy_non_temporal(to, of, n);
		else
			memcpy(to, of, n);
		bytes -= n;
		skip = 0;
		if (++j == r->inner) {
			j = 0;
			o++;
		}
	}
}

static void copy_run(const struct oki_host_work *work, const struct oki_run *run, uint64_t from,
		     uint64_t bytes)
{
	const struct oki_layer_map *map = oki_run_is_joinable(run) ? &work->joined : work->map;
	for (uint32_t s = 0; bytes > 0; s++) {
		uint64_t total = oki_run_rows(run) * map->segments[s].bytes;
		if (from >= total) {
			from -= total;
			continue;
		}
		uint64_t n = total - from < bytes ? total - from : bytes;
		struct oki_rect rect = oki_rect(map, run, s);
		copy_rect(work, &rect, from, n);
		bytes -= n;
		from = 0;
	}
}

void oki_host_copy(const struct oki_host_work *work, struct oki_host_cursor from, uint64_t bytes)
{
	while (bytes > 0) {
		uint64_t rest = run_bytes(work, from.run) - from.pos;
		uint64_t n = rest < bytes ? rest : bytes;
		copy_run(work, &work->runs[from.run], from.pos, n);
		bytes -= n;
		from.run++;
		from.pos = 0;
	}
	if (work->past_cache)
		fence_non_temporal();
}
