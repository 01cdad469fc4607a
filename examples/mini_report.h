/* SPDX-License-Identifier: Apache-2.0 */
/* [E] How far one pass of mini_engine is, and what it found out: for people and for scripts. */
#ifndef MINI_REPORT_H
#define MINI_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#define MINI_MAX_DECODE 256u

/* FNV-1a, 128 bits: over the bits of every logit, so that one differing bit shows. */
struct mini_digest {
	unsigned __int128 hash;
};

void mini_digest_init(struct mini_digest *d);
void mini_digest_add(struct mini_digest *d, const float *values, uint32_t count);

/*
 * One line on stderr that renews itself on a terminal, and a line now and then elsewhere. Short
 * work shows nothing.
 */
struct mini_progress {
	const char *what; /* "computing" */
	uint32_t total;
	bool wanted;
	bool terminal;
	bool drawn;
	double next_ms; /* when it is time to show something again */
};

/** what must live until the end. */
void mini_progress_start(struct mini_progress *p, bool wanted, const char *what, uint32_t total);
void mini_progress_show(struct mini_progress *p, uint32_t done);
/** Take the line away; whatever is printed next starts at the left. */
void mini_progress_end(struct mini_progress *p);

/** Monotonic. */
double mini_now_ms(void);

/* One pass: a cold one (computes and publishes) or a restored one. */
struct mini_report {
	const char *role; /* "cold", "restored", "flipped" */
	uint32_t prompt_tokens;
	uint32_t computed_tokens; /* of the prompt, before the first new token */
	uint64_t published_blocks;
	uint64_t present_blocks; /* not published again: stored already */
	uint64_t published_bytes;
	uint64_t restored_blocks;
	uint64_t restored_bytes;
	uint32_t moved_pages; /* restored blocks whose page number is another than their place */
	double first_token_ms;
	double first_layer_ms; /* until layer 0 could be read; 0 when cold */
	bool verified;
	uint64_t differing_bytes; /* against a recomputed reference; when verified */
	uint64_t stray_bytes;	  /* written outside of the pages in use; when verified */
	uint32_t decoded;
	uint8_t tokens[MINI_MAX_DECODE];
	struct mini_digest first; /* logits of the first new token */
	struct mini_digest all;	  /* logits of every new token */
};

/** Lines for people, on stdout. */
void mini_report_print(const struct mini_report *r);
/** key=value lines, in a file that appears complete or not at all. 0 or an errno value. */
int mini_report_write(const struct mini_report *r, const char *path);

#endif
