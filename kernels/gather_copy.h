/* SPDX-License-Identifier: Apache-2.0 */
/* [B] The parameters of the copy kernel. Plain C: the host writes them, the GPU reads them. */
#ifndef KERNELS_GATHER_COPY_H
#define KERNELS_GATHER_COPY_H

#include <stdint.h>

/* Columns, tables and inline entries together fit the 4 KiB of parameters that every driver
 * accepts.
 */
#define OKI_GATHER_COLUMNS 84u
/* Tables: one for each group of layers. */
#define OKI_GATHER_TABLES 8u
/* Table entries in the parameters, so that a small copy reads no table in GPU memory. */
#define OKI_GATHER_INLINE_ROWS 72u
/* Most threads of a block; whole warps. */
#define OKI_GATHER_THREADS 1024u
/* Tile sizes are multiples of this, so that each lane of a warp has 16 bytes. */
#define OKI_GATHER_TILE 512u
/* Most loads that a lane has in flight. */
#define OKI_GATHER_LOADS 4u
/* Writes to the host go in lines of so many bytes, each with its own header. A tile takes the time
 * of its lines and half a line more. */
#define OKI_GATHER_LINE 128u
/* Units of `pace` per nanosecond. */
#define OKI_GATHER_PACE 1024u

/* A table entry: one page of one block, the same for every layer and segment of its group. */
struct oki_gather_row {
	uint64_t host;	/* payload of the block, as the GPU sees it */
	uint32_t page;	/* in the tensor */
	uint32_t inner; /* which page of the block */
};

/* The entries of one group. */
struct oki_gather_table {
	const struct oki_gather_row *rows; /* in GPU memory; NULL: in `few` */
	uint32_t first;			   /* index in `few` */
	uint32_t count;
};

/* One segment of one layer. The fragment of entry r of its table has bytes bytes and is at
 *   host   rows[r].host + block_offset + rows[r].inner * bytes
 *   device page0 + rows[r].page * page_stride */
struct oki_gather_column {
	uint64_t page0;
	uint64_t page_stride;
	uint64_t block_offset;
	uint32_t bytes;
	uint16_t table;
	uint16_t signal; /* raise this counter once this and all earlier columns are copied; or 0 */
};

/*
 * A column has one fragment for each entry of its table. Fragments are divided into tiles of
 * `tile` bytes, the last one shorter, which are numbered column after column.
 *
 * A lane group takes one tile at a time: first the tile of its own number, then the next free one,
 * by a ticket. So no lane group falls behind, and a column ends soon after its last tile is taken.
 * All lane groups together take as many tickets as there are tiles and lane groups. Without tickets
 * each of n lane groups takes every n-th tile.
 *
 * With a pace, a lane group begins no tile before it is due. A tile is due later than the one
 * before by `pace` for each half line of that one. So all lane groups together write no faster than
 * the rate that the pace stands for. The first tiles are due after the expected end of the launch
 * before.
 *
 * Each lane group raises counters[0] by one when its next tile is number `early` or later, so that
 * the next launch can start while this one ends. Each block raises counters[signal] by one when its
 * share of that column and of all columns before it is written: whoever sees the count of all
 * blocks sees the bytes.
 */
struct oki_gather {
	uint32_t *counters; /* or NULL: nothing is counted */
	uint32_t *tickets;  /* or NULL */
	uint32_t column_count;
	uint32_t tile;
	uint32_t loads;	   /* of 16 bytes that each lane has in flight, 1 to OKI_GATHER_LOADS */
	uint32_t to_pages; /* else to blocks */
	uint32_t early;
	uint32_t first_ticket; /* value of *tickets before this launch takes one */
	uint32_t pace;	       /* time of a lane group for half a line; 0: no limit */
	uint32_t beside_pace;  /* the same, while restores are in flight */
	uint32_t lasts_ns;     /* time of the whole launch at `pace` */
	/* The number of restores in flight, in host memory. The first lane group reads it at each
	 * of its tiles and writes it to *beside for all others. NULL: always use `pace`. */
	const uint32_t *restores;
	uint32_t *beside;
	/* The expected end of this launch by the GPU's clock, which it writes as it begins; and
	 * that of the launch before, which may still run. Or NULL. */
	uint64_t *until;
	const uint64_t *until_before;
	struct oki_gather_table tables[OKI_GATHER_TABLES];
	struct oki_gather_row few[OKI_GATHER_INLINE_ROWS];
	struct oki_gather_column columns[OKI_GATHER_COLUMNS];
};

/* Entry points by lanes per lane group: 8 for fragments under 1 KiB, 16 under 2 KiB, else 32. */
#define OKI_GATHER_NAME_8 "oki_gather_8"
#define OKI_GATHER_NAME_16 "oki_gather_16"
#define OKI_GATHER_NAME_32 "oki_gather_32"

#endif
