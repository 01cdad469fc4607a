/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Digests, progress, printed lines, and the key=value file. */
#include "mini_report.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TERMINAL_MS 200.0
#define LINES_MS 2000.0
#define WIDE(high, low) ((unsigned __int128)(high) << 64 | (low))

void mini_digest_init(struct mini_digest *d)
{
	d->hash = WIDE(0x6c62272e07bb0142ull, 0x62b821756295c58dull);
}

void mini_digest_add(struct mini_digest *d, const float *values, uint32_t count)
{
	const unsigned __int128 prime = WIDE(0x1000000ull, 0x13bull);

	for (uint32_t i = 0; i < count; i++) {
		uint32_t bits;

		memcpy(&bits, &values[i], sizeof(bits));
		for (uint32_t byte = 0; byte < 4; byte++)
			d->hash = (d->hash ^ (bits >> 8 * byte & 0xff)) * prime;
	}
}

static void put_digest(FILE *f, const char *name, const struct mini_digest *d)
{
	fprintf(f, "%s%016" PRIx64 "%016" PRIx64 "\n", name, (uint64_t)(d->hash >> 64),
		(uint64_t)d->hash);
}

double mini_now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

void mini_progress_start(struct mini_progress *p, bool wanted, const char *what, uint32_t total)
{
	const char *kind = getenv("TERM");

	*p = (struct mini_progress){.what = what, .total = total, .wanted = wanted};
	p->terminal = isatty(STDERR_FILENO) && kind && strcmp(kind, "dumb") != 0;
	p->next_ms = mini_now_ms() + (p->terminal ? TERMINAL_MS : LINES_MS);
}

/* 12,345 as the documents write it; below a million. */
static const char *with_comma(char text[16], uint32_t number)
{
	if (number < 1000)
		snprintf(text, 16, "%u", number);
	else
		snprintf(text, 16, "%u,%03u", number / 1000, number % 1000);
	return text;
}

void mini_progress_show(struct mini_progress *p, uint32_t done)
{
	char a[16], b[16];
	double now;

	if (!p->wanted)
		return;
	now = mini_now_ms();
	if (now < p->next_ms)
		return;
	p->next_ms = now + (p->terminal ? TERMINAL_MS : LINES_MS);
	p->drawn = p->terminal;
	fprintf(stderr, "%s  %s: %s of %s tokens%s", p->terminal ? "\r\033[K" : "", p->what,
		with_comma(a, done), with_comma(b, p->total), p->terminal ? "" : "\n");
}

void mini_progress_end(struct mini_progress *p)
{
	if (p->drawn)
		fputs("\r\033[K", stderr);
	p->drawn = false;
}

static void print_text(const struct mini_report *r)
{
	printf("  new tokens as text       \"");
	for (uint32_t i = 0; i < r->decoded; i++) {
		int c = r->tokens[i];

		if (c < 0x80 && isprint(c) && c != '"' && c != '\\')
			putchar(c);
		else
			printf("\\x%02x", (unsigned)c);
	}
	printf("\"\n");
}

void mini_report_print(const struct mini_report *r)
{
	printf("%s pass\n", r->role);
	printf("  prompt                   %u tokens, %u of them computed\n", r->prompt_tokens,
	       r->computed_tokens);
	printf("  time to first token      %.1f ms\n", r->first_token_ms);
	if (r->restored_blocks) {
		printf("  restored                 %" PRIu64 " blocks, %" PRIu64 " bytes\n",
		       r->restored_blocks, r->restored_bytes);
		printf("  first layer readable     after %.2f ms\n", r->first_layer_ms);
		printf("  differently numbered     %u of its pages\n", r->moved_pages);
	}
	if (r->published_blocks || r->present_blocks)
		printf("  published                %" PRIu64 " blocks, %" PRIu64 " bytes"
		       " (%" PRIu64 " more were there)\n",
		       r->published_blocks, r->published_bytes, r->present_blocks);
	if (r->verified) {
		printf("  against a recomputation  %" PRIu64 " bytes differ\n", r->differing_bytes);
		printf("  outside its pages        %" PRIu64 " bytes written\n", r->stray_bytes);
	}
	print_text(r);
	put_digest(stdout, "  digest of all logits     ", &r->all);
}

static void put_report(FILE *f, const struct mini_report *r)
{
	fprintf(f, "role=%s\n", r->role);
	fprintf(f, "prompt_tokens=%u\ncomputed_tokens=%u\n", r->prompt_tokens, r->computed_tokens);
	fprintf(f, "first_token_ms=%.3f\nfirst_layer_ms=%.3f\n", r->first_token_ms,
		r->first_layer_ms);
	fprintf(f, "published_blocks=%" PRIu64 "\npresent_blocks=%" PRIu64 "\n",
		r->published_blocks, r->present_blocks);
	fprintf(f, "published_bytes=%" PRIu64 "\n", r->published_bytes);
	fprintf(f, "restored_blocks=%" PRIu64 "\nrestored_bytes=%" PRIu64 "\n", r->restored_blocks,
		r->restored_bytes);
	fprintf(f, "moved_pages=%u\n", r->moved_pages);
	if (r->verified)
		fprintf(f, "differing_bytes=%" PRIu64 "\nstray_bytes=%" PRIu64 "\n",
			r->differing_bytes, r->stray_bytes);
	fprintf(f, "tokens=");
	for (uint32_t i = 0; i < r->decoded; i++)
		fprintf(f, "%02x", r->tokens[i]);
	fprintf(f, "\n");
	put_digest(f, "first_digest=", &r->first);
	put_digest(f, "digest=", &r->all);
}

int mini_report_write(const struct mini_report *r, const char *path)
{
	char draft[4096];
	FILE *f;
	int failed;

	if (snprintf(draft, sizeof(draft), "%s.new", path) >= (int)sizeof(draft))
		return ENAMETOOLONG;
	f = fopen(draft, "w");
	if (!f)
		return errno;
	put_report(f, r);
	failed = ferror(f);
	if (fclose(f) || failed)
		return EIO;
	return rename(draft, path) ? errno : 0;
}
