/* SPDX-License-Identifier: Apache-2.0 */
/* [B] What the copy kernel is told. Plain C: the host fills it, the GPU reads it. */
#ifndef KERNELS_GATHER_COPY_H
#define KERNELS_GATHER_COPY_H

#include <stdint.h>

/* Both together fit the 4 KiB of parameters that every driver takes. */
#define OKI_GATHER_COLUMNS 84u
/* Groups of layers with rows of their own. */
#define OKI_GATHER_TABLES 8u
/* Rows that travel in the parameters, so that a small copy reads no table. */
#define OKI_GATHER_INLINE_ROWS 72u
/* Of a block at most; whole warps. */
#define OKI_GATHER_THREADS 1024u
/* Pieces of a row are multiples of this: every warp's lanes have 16 bytes each. */
#define OKI_GATHER_PIECE 512u
/* Loads that a lane has on their way at most. */
#define OKI_GATHER_LOADS 4u
/* What goes to the host goes in lines of so many bytes, each with a header of its own. A piece
 * takes as long as its lines, and half a one. */
#define OKI_GATHER_LINE 128u
/* Units of `pace` in a nanosecond. */
#define OKI_GATHER_PACE 1024u

/* One page of one block: the same for every layer and segment of its group. */
struct oki_gather_row {
	uint64_t host;	/* payload of the block, as the GPU addresses it */
	uint32_t page;	/* in the tensor */
	uint32_t inner; /* which page of the block */
};

/* The rows of one group. */
struct oki_gather_table {
	const struct oki_gather_row *rows; /* NULL: among the few */
	uint32_t first;			   /* of the few */
	uint32_t count;
};

/* One segment of one layer. The fragment of row r of its table has bytes bytes and lies at
 *   host   rows[r].host + block_offset + rows[r].inner * bytes
 *   device page0 + rows[r].page * page_stride */
struct oki_gather_column {
	uint64_t page0;
	uint64_t page_stride;
	uint64_t block_offset;
	uint32_t bytes;
	uint16_t table;
	uint16_t signal; /* the counter to raise when this column and all before it are copied; or 0
			  */
};

/*
 * All fragments, of a column one for each row of its table, each cut into pieces of piece bytes,
 * the last one shorter, numbered column after column. A group of lanes takes one piece at a time:
 * first the one of its own number, then the next one that nobody has, by a ticket, so that no group
 * falls behind and a column ends soon after its last piece was taken. Together they draw as many
 * tickets as there are pieces and groups. Without tickets they take turns.
 *
 * With a pace, a group begins a piece no sooner than `pace` for each half line of the one before
 * after that was due, so that all of them together write no faster than they are told to; the first
 * ones wait for the end of the launch before.
 *
 * Counted is, once each,
 *   a group in counters[0] when its next piece is number `early` or a later one, so that the next
 *   launch can start while this one ends;
 *   a block in counters[signal] when the share that its groups have of that column and of all
 *   before it is written: once all blocks are, whoever sees the count sees the bytes.
 */
struct oki_gather {
	uint32_t *counters; /* or NULL: nothing is counted */
	uint32_t *tickets;  /* or NULL */
	uint32_t column_count;
	uint32_t piece;
	uint32_t loads;	   /* of 16 bytes on their way in each lane, 1 to OKI_GATHER_LOADS */
	uint32_t to_pages; /* else to blocks */
	uint32_t early;
	uint32_t first_ticket; /* what tickets holds before this launch takes one */
	uint32_t pace;	       /* of a group, for half a line; 0: as fast as it can */
	uint32_t beside_pace;  /* while restores are on their way */
	uint32_t lasts_ns;     /* all of it at `pace` */
	/* Restores on their way, in host memory; the first group looks now and then, and tells all
	 * others of the launch here. Or NULL: `pace` throughout. */
	const uint32_t *restores;
	uint32_t *beside;
	/* When this launch will be through, by the GPU's clock, which it says as it begins; and the
	 * same of the launch before, which may still be there. Or NULL. */
	uint64_t *until;
	const uint64_t *until_before;
	struct oki_gather_table tables[OKI_GATHER_TABLES];
	struct oki_gather_row few[OKI_GATHER_INLINE_ROWS];
	struct oki_gather_column columns[OKI_GATHER_COLUMNS];
};

/* Entry points by lanes per group: 8 for fragments under 1 KiB, 16 under 2 KiB, else 32. */
#define OKI_GATHER_NAME_8 "oki_gather_8"
#define OKI_GATHER_NAME_16 "oki_gather_16"
#define OKI_GATHER_NAME_32 "oki_gather_32"

#endif
