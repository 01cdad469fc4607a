/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Copies fragments between mapped host memory and pages with a few SMs. */
#include "gather_copy.h"
#include "gather_pace.h"

/* A tile. */
struct tile {
	uint64_t host;
	uint64_t page;
	uint32_t bytes;
};

/* A lane group's position in the sequence of all tiles; it only moves forward. */
struct place {
	uint32_t unit;
	uint32_t column;
	uint32_t first; /* number of the column's first tile */
};

static __device__ bool find_tile(const oki_gather &g, place &at, tile &found)
{
	while (at.column < g.column_count) {
		const oki_gather_column &c = g.columns[at.column];
		uint32_t per_row = (uint32_t)((c.bytes - 1) / g.tile + 1);
		const oki_gather_table &table = g.tables[c.table];
		uint32_t local = at.unit - at.first;
		if (local >= per_row * table.count) {
			at.first += per_row * table.count;
			at.column++;
			continue;
		}
		uint32_t row = local / per_row;
		uint64_t offset = (uint64_t)(local - row * per_row) * g.tile;
		uint64_t left = c.bytes - offset;
		oki_gather_row r = table.rows ? table.rows[row] : g.few[table.first + row];
		found.host = r.host + c.block_offset + (uint64_t)r.inner * c.bytes + offset;
		found.page = c.page0 + r.page * c.page_stride + offset;
		found.bytes = left < g.tile ? (uint32_t)left : g.tile;
		return true;
	}
	return false;
}

/* Copies words of one type. All loads of a round are issued before its first store. */
template <int LANES, typename WORD>
static __device__ void copy_words(uint64_t to, uint64_t from, uint32_t count, uint32_t lane,
				  uint32_t loads)
{
	const WORD *in = (const WORD *)from;
	WORD *out = (WORD *)to;
	for (uint32_t i = lane; i < count; i += loads * LANES) {
		WORD held[OKI_GATHER_LOADS];
#pragma unroll
		for (uint32_t k = 0; k < OKI_GATHER_LOADS; k++)
			if (k < loads && i + k * LANES < count)
				held[k] = __ldcs(in + i + k * LANES);
#pragma unroll
		for (uint32_t k = 0; k < OKI_GATHER_LOADS; k++)
			if (k < loads && i + k * LANES < count)
				out[i + k * LANES] = held[k];
	}
}

template <int LANES>
static __device__ void copy_bytes(uint64_t to, uint64_t from, uint32_t bytes, uint32_t lane)
{
	copy_words<LANES, unsigned char>(to, from, bytes, lane, OKI_GATHER_LOADS);
}

template <int LANES, typename WORD>
static __device__ void copy_aligned(uint64_t to, uint64_t from, uint32_t bytes, uint32_t lane,
				    uint32_t loads)
{
	uint32_t head = (uint32_t)(-to & (sizeof(WORD) - 1));
	if (head > bytes)
		head = bytes;
	uint32_t words = (bytes - head) / sizeof(WORD);
	uint32_t tail = bytes - head - words * (uint32_t)sizeof(WORD);
	if (head)
		copy_bytes<LANES>(to, from, head, lane);
	copy_words<LANES, WORD>(to + head, from + head, words, lane, loads);
	if (tail)
		copy_bytes<LANES>(to + bytes - tail, from + bytes - tail, tail, lane);
}

/* Copies with the widest words that both addresses allow. Words below 16 bytes never fill the link,
 * so they use all loads. */
template <int LANES>
static __device__ void copy_tile(uint64_t to, uint64_t from, uint32_t bytes, uint32_t lane,
				 uint32_t loads)
{
	uint32_t differ = (uint32_t)(to ^ from);
	if ((differ & 15) == 0)
		copy_aligned<LANES, uint4>(to, from, bytes, lane, loads);
	else if ((differ & 7) == 0)
		copy_aligned<LANES, uint2>(to, from, bytes, lane, OKI_GATHER_LOADS);
	else if ((differ & 3) == 0)
		copy_aligned<LANES, unsigned int>(to, from, bytes, lane, OKI_GATHER_LOADS);
	else if ((differ & 1) == 0)
		copy_aligned<LANES, unsigned short>(to, from, bytes, lane, OKI_GATHER_LOADS);
	else
		copy_bytes<LANES>(to, from, bytes, lane);
}

template <int LANES> static __device__ uint32_t lane_group_mask()
{
	return 0xffffffffu >> (32 - LANES) << (threadIdx.x % 32 / LANES * LANES);
}

static __device__ uint64_t now_ns()
{
	uint64_t ns;
	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
	return ns;
}

/* How many half lines a tile is counted as: those of its lines and one more. Each round that a lane
 * group writes at once has a line more if it begins inside one. */
template <int LANES> static __device__ uint32_t half_lines(const tile &p)
{
	uint32_t within = (uint32_t)(p.host % OKI_GATHER_LINE);
	uint32_t lines = (within + p.bytes - 1) / OKI_GATHER_LINE + 1;
	if (within)
		lines += p.bytes / (LANES * (uint32_t)sizeof(uint4));
	return 2 * lines + 1;
}

/* The present pace. Only one lane group reads host memory; it tells all others. */
static __device__ uint32_t pace_now(const oki_gather &g, bool reads_host)
{
	if (!g.beside)
		return g.pace;
	if (reads_host)
		*(volatile uint32_t *)g.beside = *(const volatile uint32_t *)g.restores;
	return *(const volatile uint32_t *)g.beside ? g.beside_pace : g.pace;
}

/* Lane groups start after the expected end of the launch before, and one after the other: otherwise
 * all would write at once. */
template <int LANES>
static __device__ oki_gather_schedule schedule_begin(const oki_gather &g, uint32_t group,
						     const tile &first)
{
	uint32_t groups = gridDim.x * blockDim.x / LANES;
	uint64_t now = now_ns(), until = now;
	if (g.until_before) {
		until = *(const volatile uint64_t *)g.until_before;
		until = until > now ? until : now;
	}
	if (g.until && group == 0)
		*(volatile uint64_t *)g.until = until + g.lasts_ns;
	uint64_t first_takes = (uint64_t)half_lines<LANES>(first) * g.pace;
	return oki_gather_begin(now, until, first_takes * group / groups);
}

template <int LANES>
static __device__ void keep_pace(const oki_gather &g, const tile &p, oki_gather_schedule &s,
				 uint32_t thread)
{
	if (thread % LANES == 0) {
		uint64_t takes = (uint64_t)half_lines<LANES>(p) * pace_now(g, thread == 0);
		uint64_t now = now_ns();
		oki_gather_catch_up(&s, now, takes);
		for (uint32_t n = 0; n < OKI_GATHER_LOOKS && oki_gather_is_early(&s, now); n++) {
			__nanosleep(100);
			now = now_ns();
		}
		oki_gather_take(&s, now, takes);
	}
	__syncwarp(lane_group_mask<LANES>());
}

/* The first lane takes a ticket one tile ahead of its use, since an atomic takes microseconds under
 * load. */
static __device__ uint32_t take_ticket(const oki_gather &g, uint32_t lane)
{
	return g.tickets && lane == 0 ? atomicAdd(g.tickets, 1u) : 0;
}

/* The number of this lane group's next tile, after tile `unit`. */
template <int LANES>
static __device__ uint32_t next_unit(const oki_gather &g, uint32_t unit, uint32_t &ticket,
				     uint32_t lane)
{
	uint32_t groups = gridDim.x * blockDim.x / LANES;
	if (!g.tickets)
		return unit + groups;
	unit = __shfl_sync(lane_group_mask<LANES>(), ticket, 0, LANES) - g.first_ticket + groups;
	ticket = take_ticket(g, lane);
	return unit;
}

/*
 * This lane group has no tile left in columns before `end`. Returns end. The last lane group of a
 * block raises the column's counter for the whole block: a system-wide fence takes microseconds, in
 * which a lane group loads nothing.
 */
template <int LANES>
static __device__ uint32_t raise_counters(const oki_gather &g, uint32_t column, uint32_t end,
					  uint32_t lane, uint32_t *arrived)
{
	for (; column < end; column++) {
		uint32_t signal = g.columns[column].signal;
		if (!signal)
			continue;
		/* G8: the stores of all lanes come before the first lane's count in the block, */
		__syncwarp(lane_group_mask<LANES>());
		if (lane != 0)
			continue;
		__threadfence_block();
		if (atomicAdd_block(arrived + column, 1u) + 1 < blockDim.x / LANES)
			continue;
		/* and those of all lane groups before the counter. System-wide, as a CUDA stream
		 * waits for the counter, not a thread of the GPU. */
		__threadfence_system();
		atomicAdd(g.counters + signal, 1u);
	}
	return column;
}

/* Reads the table entry of the next tile before it copies the present one. */
template <int LANES> static __device__ void gather(const oki_gather &g)
{
	/* By column: how many lane groups of the block have finished it. */
	__shared__ uint32_t arrived[OKI_GATHER_COLUMNS];
	uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
	uint32_t lane = thread % LANES;
	for (uint32_t i = threadIdx.x; i < OKI_GATHER_COLUMNS; i += blockDim.x)
		arrived[i] = 0;
	__syncthreads();
	place at = {thread / LANES, 0, 0};
	uint32_t ticket = take_ticket(g, lane);
	tile now, next;
	uint32_t passed = 0;
	bool counts = g.counters && lane == 0;
	bool more = find_tile(g, at, now);
	oki_gather_schedule times = {};
	if (g.pace && more && lane == 0)
		times = schedule_begin<LANES>(g, thread / LANES, now);
	for (;;) {
		if (counts && at.unit >= g.early) {
			atomicAdd(g.counters, 1u);
			counts = false;
		}
		passed = raise_counters<LANES>(g, passed, at.column, lane, arrived);
		if (!more)
			break;
		at.unit = next_unit<LANES>(g, at.unit, ticket, lane);
		more = find_tile(g, at, next);
		if (g.pace)
			keep_pace<LANES>(g, now, times, thread);
		if (g.to_pages)
			copy_tile<LANES>(now.page, now.host, now.bytes, lane, g.loads);
		else
			copy_tile<LANES>(now.host, now.page, now.bytes, lane, g.loads);
		now = next;
	}
}

#define ENTRY(lanes)                                                              \
	extern "C" __global__ void __launch_bounds__(OKI_GATHER_THREADS, 1)       \
		oki_gather_##lanes(const __grid_constant__ oki_gather parameters) \
	{                                                                         \
		gather<lanes>(parameters);                                        \
	}

ENTRY(8)
ENTRY(16)
ENTRY(32)
