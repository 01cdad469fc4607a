/* SPDX-License-Identifier: Apache-2.0 */
/*
 * [E] A tiny inference engine that keeps its KV cache in OrbitKV.
 *
 *   mini_engine --role cold      computes a prompt, publishes its blocks, decodes
 *   mini_engine --role restored  finds the blocks, restores them layer by layer into pages with
 *                                other numbers, computes what is missing, decodes
 *   mini_engine --embedded       both in one process without a Manager process
 *
 * Both roles must arrive at bitwise the same logits.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mini_cache.h"
#include "mini_model.h"
#include "mini_report.h"

#define DEFAULT_TOKENS 3072u
#define PIECE 64u	 /* tokens between two looks at the clock, when progress is shown */
#define MAX_TOKENS 4096u /* help and expected() name it, and the least: MINI_BLOCK + 1 */

struct options {
	struct mini_cache_options cache;
	const char *prompt;
	const char *role;
	const char *report;
	uint64_t order; /* page numbers of a restored pass */
	uint32_t max_tokens;
	uint32_t decode;
	bool hold;
	bool flip;
	bool progress;
};

struct engine {
	const struct options *opts;
	struct mini_model *model;
	struct mini_kv kv;
	struct mini_cache cache;
	uint8_t tokens[MAX_TOKENS + MINI_MAX_DECODE]; /* the prompt, then what was decoded */
	uint8_t keys[MAX_TOKENS / MINI_BLOCK * MINI_KEY_BYTES];
	uint32_t prompt_tokens;
	/* of the running pass */
	double start_ms;
	double first_layer_ms;
	bool flip;
	float logits[MINI_VOCAB];
};

static int cache_failed(const struct engine *e, const char *what)
{
	fprintf(stderr, "mini_engine: %s: %s: %s\n", what, okv_status_name(e->cache.err.status),
		e->cache.err.text);
	return 1;
}

static uint8_t most_likely(const float *logits)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < MINI_VOCAB; i++)
		best = logits[i] > logits[best] ? i : best;
	return (uint8_t)best;
}

/* Takes the logits of the last prompt token; every later token goes to a page of its own. */
static void decode(struct engine *e, struct mini_report *r)
{
	mini_digest_init(&r->first);
	mini_digest_init(&r->all);
	mini_digest_add(&r->first, e->logits, MINI_VOCAB);
	for (uint32_t i = 0;; i++) {
		uint32_t position = e->prompt_tokens + i;

		mini_digest_add(&r->all, e->logits, MINI_VOCAB);
		e->tokens[position] = r->tokens[i] = most_likely(e->logits);
		r->decoded = i + 1;
		if (r->decoded == e->opts->decode)
			return;
		mini_model_run(e->model, &e->kv, e->tokens, position, 1, NULL, NULL, e->logits);
	}
}

/* From token 0 on, in pieces to show progress between them: the result does not depend on them. */
static void compute(struct engine *e, struct mini_kv *kv, uint32_t count, const char *what)
{
	struct mini_progress progress;
	uint32_t piece;

	mini_progress_start(&progress, e->opts->progress, what, count);
	for (uint32_t done = 0; done < count; done += piece) {
		piece = count - done < PIECE ? count - done : PIECE;
		mini_model_run(e->model, kv, e->tokens, done, piece, NULL, NULL, e->logits);
		mini_progress_show(&progress, done + piece);
	}
	mini_progress_end(&progress);
}

static int run_cold(struct engine *e, struct mini_report *r)
{
	const uint32_t blocks = e->prompt_tokens / MINI_BLOCK; /* the full ones */
	struct okv_op_result published;

	r->role = "cold";
	r->prompt_tokens = r->computed_tokens = e->prompt_tokens;
	e->start_ms = mini_now_ms();
	compute(e, &e->kv, e->prompt_tokens, "computing");
	r->first_token_ms = mini_now_ms() - e->start_ms;

	if (mini_cache_publish(&e->cache, e->keys, blocks))
		return cache_failed(e, "publish");
	decode(e, r);
	if (mini_cache_publish_wait(&e->cache, &published))
		return cache_failed(e, "publish");
	r->published_blocks = published.blocks;
	r->published_bytes = published.bytes;
	r->present_blocks = published.present;
	return 0;
}

/* One bit of the first value of the first restored block: the sign, which the model must notice. */
static void flip_byte(struct engine *e)
{
	uint32_t bits;
	float *value = mini_kv_v(&e->kv, 0, 0);

	memcpy(&bits, value, sizeof(bits));
	bits ^= 0x80000000u;
	memcpy(value, &bits, sizeof(bits));
}

static int gate(void *arg, uint32_t layer)
{
	struct engine *e = arg;
	int r;

	/* Pages belong to the library until drained; who writes to them has to wait. */
	if (e->flip && layer == 0 && okv_op_wait(e->cache.restore, -1, NULL))
		return -1;
	r = mini_cache_wait_layer(&e->cache, layer);
	if (r || layer)
		return r;
	e->first_layer_ms = mini_now_ms() - e->start_ms;
	if (e->flip)
		flip_byte(e);
	return 0;
}

/*
 * Restore the blocks and compute the rest of the prompt while they arrive. After a failure
 * *ret_done is false: the pages hold anything, and whatever was computed from them is dropped.
 */
static int try_restore(struct engine *e, uint32_t blocks, struct mini_report *r, bool *ret_done)
{
	const uint32_t restored = blocks * MINI_BLOCK;
	struct okv_op_result result;
	int computed;

	if (mini_cache_restore(&e->cache, blocks))
		return cache_failed(e, "restore");
	computed = mini_model_run(e->model, &e->kv, e->tokens, restored,
				  e->prompt_tokens - restored, gate, e, e->logits);
	if (mini_cache_restore_wait(&e->cache, &result) || computed) {
		cache_failed(e, "restore, computing the prompt instead");
		*ret_done = false;
		return 0;
	}
	r->restored_blocks = result.blocks;
	r->restored_bytes = result.bytes;
	r->computed_tokens = e->prompt_tokens - restored;
	r->first_layer_ms = e->first_layer_ms;
	*ret_done = true;
	return 0;
}

/* Compare the restored pages with KV that nobody ever published or restored. */
static int verify(struct engine *e, struct mini_report *r)
{
	const uint32_t used = (e->prompt_tokens + e->opts->decode + MINI_BLOCK - 1) / MINI_BLOCK;
	const uint32_t blocks = (uint32_t)r->restored_blocks;
	struct mini_kv reference;

	if (mini_kv_init(&reference, e->prompt_tokens)) {
		fprintf(stderr, "mini_engine: no memory for the reference\n");
		return 1;
	}
	compute(e, &reference, blocks * MINI_BLOCK, "checking");
	r->differing_bytes = mini_kv_differing(&e->kv, &reference, blocks);
	r->stray_bytes = mini_kv_stray(&e->kv, used);
	r->verified = true;
	mini_kv_fini(&reference);
	if (r->differing_bytes || r->stray_bytes) {
		fprintf(stderr, "mini_engine: restored pages are wrong\n");
		return 1;
	}
	return 0;
}

static int run_restored(struct engine *e, struct mini_report *r)
{
	/* The last token is computed in any case: its logits are not cached. */
	const uint32_t askable = (e->prompt_tokens - 1) / MINI_BLOCK;
	uint32_t blocks;
	bool done = false;

	r->role = e->flip ? "flipped" : "restored";
	r->prompt_tokens = r->computed_tokens = e->prompt_tokens;
	e->start_ms = mini_now_ms();
	if (mini_cache_find(&e->cache, e->keys, askable, &blocks))
		return cache_failed(e, "lookup");
	if (blocks && try_restore(e, blocks, r, &done))
		return 1;
	if (!done)
		compute(e, &e->kv, e->prompt_tokens, "computing");
	r->first_token_ms = mini_now_ms() - e->start_ms;
	for (uint32_t i = 0; i < r->restored_blocks; i++)
		r->moved_pages += e->kv.table[i] != i;
	decode(e, r);
	return e->flip ? 0 : verify(e, r);
}

static int hand_out(const struct engine *e, const struct mini_report *r, const char *suffix)
{
	char path[4096];
	int error;

	mini_report_print(r);
	fflush(stdout);
	if (!e->opts->report)
		return 0;
	if (snprintf(path, sizeof(path), "%s%s", e->opts->report, suffix) >= (int)sizeof(path))
		error = ENAMETOOLONG;
	else
		error = mini_report_write(r, path);
	if (error)
		fprintf(stderr, "mini_engine: %s: %s\n", path, strerror(error));
	return error ? 1 : 0;
}

/* A pass of another process, or of this one with all its pages wiped and numbered anew. */
static int restored_pass(struct engine *e, bool flip, struct mini_report *r)
{
	e->flip = flip;
	mini_kv_wipe(&e->kv);
	mini_kv_renumber(&e->kv, e->opts->order);
	if (mini_cache_upload(&e->cache))
		return cache_failed(e, "wipe");
	return run_restored(e, r);
}

static bool same_output(const struct mini_report *a, const struct mini_report *b)
{
	return a->all.hash == b->all.hash && a->first.hash == b->first.hash &&
	       a->decoded == b->decoded && !memcmp(a->tokens, b->tokens, a->decoded);
}

static int run_embedded(struct engine *e)
{
	struct mini_report cold = {0}, restored = {0}, flipped = {0};

	if (run_cold(e, &cold) || hand_out(e, &cold, ".cold"))
		return 1;
	if (restored_pass(e, false, &restored) || hand_out(e, &restored, ".restored"))
		return 1;
	if (!restored.restored_blocks || !same_output(&cold, &restored)) {
		fprintf(stderr, "mini_engine: the restored pass is not the cold one\n");
		return 1;
	}
	if (!e->opts->flip)
		return 0;
	if (restored_pass(e, true, &flipped) || hand_out(e, &flipped, ".flipped"))
		return 1;
	if (same_output(&cold, &flipped)) {
		fprintf(stderr, "mini_engine: nobody noticed the flipped byte\n");
		return 1;
	}
	return 0;
}

static int run_role(struct engine *e)
{
	struct mini_report r = {0};

	if (e->opts->cache.embedded)
		return run_embedded(e);
	if (!strcmp(e->opts->role, "restored"))
		return restored_pass(e, e->opts->flip, &r) || hand_out(e, &r, "");
	if (run_cold(e, &r) || hand_out(e, &r, ""))
		return 1;
	if (e->opts->hold) {
		printf("READY\n");
		fflush(stdout);
		pause();
	}
	return 0;
}

static int read_prompt(struct engine *e)
{
	FILE *f = fopen(e->opts->prompt, "r");
	int error = f ? 0 : errno;

	if (f) {
		e->prompt_tokens = (uint32_t)fread(e->tokens, 1, e->opts->max_tokens, f);
		error = ferror(f) ? errno : 0;
		fclose(f);
	}
	if (error) {
		fprintf(stderr, "mini_engine: --prompt %s: %s\n", e->opts->prompt, strerror(error));
		return 1;
	}
	if (e->prompt_tokens <= MINI_BLOCK) {
		fprintf(stderr, "mini_engine: --prompt %s: %u bytes; expected %u or more\n",
			e->opts->prompt, e->prompt_tokens, MINI_BLOCK + 1);
		return 1;
	}
	mini_kv_keys(e->tokens, e->prompt_tokens / MINI_BLOCK, e->keys);
	return 0;
}

static int run(const struct options *opts)
{
	struct engine *e = calloc(1, sizeof(*e));
	int exit_code = 1;
	int r;

	if (!e)
		return 1;
	e->opts = opts;
	if (read_prompt(e))
		goto free_engine;
	e->model = mini_model_create(opts->cache.seed, e->prompt_tokens + opts->decode);
	if (!e->model || mini_kv_init(&e->kv, e->prompt_tokens + opts->decode)) {
		fprintf(stderr, "mini_engine: out of memory\n");
		goto destroy_model;
	}
	r = mini_cache_open(&e->cache, &opts->cache, &e->kv);
	if (r == MINI_NO_GPU) {
		fprintf(stderr, "mini_engine: --device cuda: %s\n", e->cache.err.text);
		exit_code = MINI_NO_GPU;
	} else if (r) {
		cache_failed(e, "cannot open the cache");
	} else {
		exit_code = run_role(e);
	}
	mini_cache_close(&e->cache);
	mini_kv_fini(&e->kv);
destroy_model:
	mini_model_destroy(e->model);
free_engine:
	free(e);
	return exit_code;
}

static const char help[] =
	"usage: mini_engine [options]\n"
	"  --role cold|restored  compute and publish, or find and restore (default: cold)\n"
	"  --embedded            both, in this process, with a Manager inside\n"
	"  --socket PATH         socket of the Manager (default: the library's)\n"
	"  --device host|cuda    where the pages are (default: host); without a GPU: exit 77\n"
	"  --prompt FILE         text to start from; one byte is one token (default: README.md)\n"
	"  --max-tokens N        of the prompt, 17 to 4096 (default: 3072)\n"
	"  --decode N            new tokens, 1 to 256 (default: 16)\n"
	"  --seed N              of the weights (default: 42)\n"
	"  --kv-order N          page numbers of a restored pass; 0: in order (default: by pid)\n"
	"  --hold                cold: print READY when all is published, and wait to be killed\n"
	"  --flip-byte           restored: change one restored byte before it is used\n"
	"  --progress            say on stderr how much of the prompt is computed\n"
	"  --report FILE         write key=value lines; embedded: FILE.cold, FILE.restored, …\n"
	"  -h, --help            this text\n";

static const struct option long_options[] = {
	{"role", required_argument, NULL, 'r'},
	{"embedded", no_argument, NULL, 'e'},
	{"socket", required_argument, NULL, 's'},
	{"device", required_argument, NULL, 'd'},
	{"prompt", required_argument, NULL, 'p'},
	{"max-tokens", required_argument, NULL, 'm'},
	{"decode", required_argument, NULL, 'n'},
	{"seed", required_argument, NULL, 'S'},
	{"kv-order", required_argument, NULL, 'o'},
	{"hold", no_argument, NULL, 'H'},
	{"flip-byte", no_argument, NULL, 'f'},
	{"progress", no_argument, NULL, 'P'},
	{"report", required_argument, NULL, 'R'},
	{"help", no_argument, NULL, 'h'},
	{NULL, 0, NULL, 0},
};

static bool number(const char *text, uint64_t low, uint64_t high, uint64_t *ret_value)
{
	char *end;
	unsigned long long value;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || *end || value < low || value > high)
		return false;
	*ret_value = value;
	return true;
}

static bool choice(const char *text, const char *no, const char *yes, bool *ret_yes)
{
	*ret_yes = !strcmp(text, yes);
	return *ret_yes || !strcmp(text, no);
}

static bool take_option(struct options *o, int option)
{
	uint64_t value = 0;
	bool flag;

	switch (option) {
	case 'r': o->role = optarg; return choice(optarg, "cold", "restored", &flag);
	case 'e': o->cache.embedded = true; return true;
	case 's': o->cache.socket = optarg; return true;
	case 'd': return choice(optarg, "host", "cuda", &o->cache.cuda);
	case 'p': o->prompt = optarg; return true;
	case 'm':
		flag = number(optarg, MINI_BLOCK + 1, MAX_TOKENS, &value);
		o->max_tokens = (uint32_t)value;
		return flag;
	case 'n':
		flag = number(optarg, 1, MINI_MAX_DECODE, &value);
		o->decode = (uint32_t)value;
		return flag;
	case 'S': return number(optarg, 0, UINT64_MAX, &o->cache.seed);
	case 'o': return number(optarg, 0, UINT64_MAX, &o->order);
	case 'H': o->hold = true; return true;
	case 'f': o->flip = true; return true;
	case 'P': o->progress = true; return true;
	default: o->report = optarg; return true;
	}
}

static const char *expected(int option)
{
	switch (option) {
	case 'r': return "cold or restored";
	case 'd': return "host or cuda";
	case 'm': return "17 to 4096";
	case 'n': return "1 to 256";
	default: return "0 to 18446744073709551615";
	}
}

int main(int argc, char **argv)
{
	struct options opts = {
		.cache = {.seed = 42},
		.prompt = "README.md",
		.role = "cold",
		.order = (uint64_t)getpid(),
		.max_tokens = DEFAULT_TOKENS,
		.decode = 16,
	};
	int option, which = 0;

	while ((option = getopt_long(argc, argv, "h", long_options, &which)) != -1) {
		if (option == 'h') {
			fputs(help, stdout);
			return 0;
		}
		if (option == '?') {
			fputs("mini_engine: see --help\n", stderr);
			return 2;
		}
		if (!take_option(&opts, option)) {
			fprintf(stderr, "mini_engine: --%s '%s': expected %s; see --help\n",
				long_options[which].name, optarg, expected(option));
			return 2;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "mini_engine: unexpected argument %s; see --help\n", argv[optind]);
		return 2;
	}
	return run(&opts);
}
