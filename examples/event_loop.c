/* SPDX-License-Identifier: Apache-2.0 */
/*
 * [E] A connector's event loop: one thread, one poll(2), many operations at a time, and a cache
 * that may come and go.
 *
 * `usage` below says what it does.
 */
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <orbitkv/orbitkv.h>

#define TOKENS 16u  /* of a block, which is one page */
#define BLOCKS 8u   /* of the longest prompt; each request has as many pages of its own */
#define REQUESTS 8u /* at a time */
#define PAGE 4096u
#define KEY 16u
#define PAUSE_MS 100 /* between two attempts to connect */

struct request {
	bool running;
	unsigned number;
	uint32_t blocks;   /* whole blocks of the prompt */
	uint32_t restored; /* of these */
	struct okv_op *op; /* in flight: the restore, then the publish */
	bool publishing;
	uint32_t pages[BLOCKS];
	unsigned char keys[BLOCKS][KEY];
};

struct connector {
	/* the session: all NULL without one */
	struct okv_engine *engine;
	struct okv_namespace *ns;
	struct okv_binding *binding;
	/* the way to the next one */
	struct okv_engine_options options;
	long long next_try_ms;
	bool hopeless; /* there never will be one */
	/* the engine's side */
	struct request requests[REQUESTS];
	unsigned running;
	unsigned taken; /* requests so far */
	unsigned wrong; /* restored pages that were not exact */
	char input[4096];
	size_t input_bytes;
	bool input_ended;
};

static unsigned char kv[REQUESTS * BLOCKS][PAGE]; /* the one layer; outlives every session */

/* ---- the model ---- */

/* A real one hashes with a function that nobody can make collide. */
static void make_keys(struct request *r, const char *tokens)
{
	unsigned long long hash[2] = {0xcbf29ce484222325ull, 0x9e3779b97f4a7c15ull};

	for (uint32_t i = 0; i < r->blocks * TOKENS; i++) {
		hash[0] = (hash[0] ^ (unsigned char)tokens[i]) * 0x100000001b3ull;
		hash[1] = (hash[1] + (unsigned char)tokens[i] + 1) * 0xbf58476d1ce4e5b9ull;
		hash[1] ^= hash[1] >> 29;
		if (i % TOKENS == TOKENS - 1) /* a key stands for its block and all before it */
			memcpy(r->keys[i / TOKENS], hash, KEY);
	}
}

static void compute(const struct request *r, uint32_t block, unsigned char *page)
{
	for (uint32_t i = 0; i < PAGE; i++)
		page[i] = (unsigned char)(r->keys[block][i % KEY] + i / KEY);
}

static unsigned count_wrong(const struct request *r, uint32_t blocks)
{
	unsigned char right[PAGE];
	unsigned wrong = 0;

	for (uint32_t b = 0; b < blocks; b++) {
		compute(r, b, right);
		wrong += memcmp(kv[r->pages[b]], right, PAGE) != 0;
	}
	return wrong;
}

/* ---- the session ---- */

static int open_session(struct connector *c, struct okv_error *err)
{
	struct okv_layer_schema shape = {.segment_count = 1, .segment_bytes = {PAGE}};
	struct okv_group_schema group = {.kind = OKV_GROUP_FULL,
					 .block_tokens = TOKENS,
					 .layer_count = 1,
					 .layout_tag = "NHD",
					 .layers = &shape};
	struct okv_layer layer = {.base = kv,
				  .length = sizeof(kv),
				  .page_stride = PAGE,
				  .page_count = REQUESTS * BLOCKS,
				  .segment_count = 1,
				  .segment_bytes = {PAGE}};
	struct okv_namespace_options ns;
	struct okv_binding_options binding;

	okv_namespace_options_init(&ns);
	ns.model = "event-loop";
	ns.group_count = 1;
	ns.groups = &group;
	okv_binding_options_init(&binding);
	binding.device = OKV_DEVICE_HOST;
	binding.layer_count = 1;
	binding.layers = &layer;
	int status = okv_engine_open(&c->options, &c->engine, err);
	if (!status)
		status = okv_namespace_open(c->engine, &ns, &c->ns, err);
	if (!status)
		status = okv_binding_register(c->ns, &binding, &c->binding, err);
	return status;
}

/* Nothing of a session is of use in the next one. */
static void disconnect(struct connector *c)
{
	okv_binding_unregister(c->binding); /* from here on no copy touches the pages */
	okv_namespace_close(c->ns);
	okv_engine_close(c->engine);
	c->binding = NULL;
	c->ns = NULL;
	c->engine = NULL;
}

static long long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

/*
 * Opening does not wait for a Manager: while there is none, or it prepares its memory,
 * OKV_E_CONNECT comes at once. So pause in between.
 */
static void connect_now_and_then(struct connector *c)
{
	struct okv_error err;

	if (c->engine || c->hopeless || now_ms() < c->next_try_ms)
		return;
	int status = open_session(c, &err);
	if (!status) {
		printf("connected\n");
		return;
	}
	disconnect(c);
	c->next_try_ms = now_ms() + PAUSE_MS;
	/* Another version, say, stays until someone acts. One that drains may have a successor. */
	enum okv_status_group group = okv_status_group(status);
	c->hopeless = group == OKV_STATUS_GROUP_BUILD ||
		      (group == OKV_STATUS_GROUP_CALL && status != OKV_E_CLOSED);
	if (c->hopeless)
		printf("no cache: %s: %s\n", okv_status_name(status), err.text);
}

/* ---- requests: restore what is there, compute the rest, publish that, answer ---- */

static void answer(struct connector *c, struct request *r)
{
	printf("request %u: %u of %u blocks restored\n", r->number, r->restored, r->blocks);
	r->running = false;
	c->running--;
}

/* A miss is not an error, and neither is an error more than a miss: the model can compute all. */
static bool start_restore(struct connector *c, struct request *r)
{
	struct okv_keys keys = {.count = r->blocks, .key_bytes = KEY, .keys = r->keys};
	struct okv_restore_group group = {.pages = r->pages};
	struct okv_lookup_options lookup;
	struct okv_restore_options restore;
	struct okv_lookup_result found;
	struct okv_lease *lease;

	if (!c->engine || !r->blocks)
		return false;
	okv_lookup_options_init(&lookup);
	lookup.group_count = 1;
	lookup.groups = &keys;
	lookup.timeout_ms = 100; /* the one call here that waits: one round trip */
	if (okv_lookup(c->ns, &lookup, &found, &lease, NULL) || !lease)
		return false;
	group.count = found.groups[0].count;
	okv_restore_options_init(&restore);
	restore.flags = OKV_OP_NOTIFY;
	restore.user_data = (uint64_t)(r - c->requests);
	restore.group_count = 1;
	restore.groups = &group;
	r->publishing = false;
	int status = okv_restore_start(c->binding, lease, &restore, &r->op, NULL);
	okv_lease_release(lease); /* a started restore keeps what it needs */
	if (!status)
		r->restored = group.count;
	return !status;
}

static bool start_publish(struct connector *c, struct request *r)
{
	const uint32_t first = r->restored, count = r->blocks - first;
	struct okv_publish_group group = {
		.keys = {.count = count, .key_bytes = KEY, .keys = r->keys + first},
		.first_position = first,
		.tokens = count * TOKENS,
		.parent = first ? r->keys[first - 1] : NULL,
		.pages = r->pages + first,
	};
	struct okv_publish_options opts;

	if (!c->engine || !count)
		return false;
	okv_publish_options_init(&opts);
	opts.flags = OKV_OP_NOTIFY;
	opts.user_data = (uint64_t)(r - c->requests);
	opts.group_count = 1;
	opts.groups = &group;
	r->publishing = true;
	return !okv_publish_start(c->binding, &opts, &r->op, NULL);
}

/* Pages that are published may be read, but not change before that ends. */
static void compute_rest(struct connector *c, struct request *r)
{
	for (uint32_t b = r->restored; b < r->blocks; b++)
		compute(r, b, kv[r->pages[b]]);
	if (!start_publish(c, r))
		answer(c, r);
}

/* Only now are the pages the request's again. */
static void operation_ended(struct connector *c, struct request *r, int status)
{
	okv_op_release(r->op);
	r->op = NULL;
	if (r->publishing) {
		answer(c, r); /* if it failed, some later request misses */
		return;
	}
	if (status)
		r->restored = 0; /* the pages hold anything */
	c->wrong += count_wrong(r, r->restored);
	compute_rest(c, r);
}

static void begin(struct connector *c, struct request *r, const char *tokens, size_t count)
{
	*r = (struct request){.running = true, .number = ++c->taken};
	r->blocks = count / TOKENS < BLOCKS ? (uint32_t)(count / TOKENS) : BLOCKS;
	c->running++;
	for (uint32_t b = 0; b < r->blocks; b++) {
		r->pages[b] = (uint32_t)(r - c->requests) * BLOCKS + b;
		memset(kv[r->pages[b]], 0, PAGE); /* so that a restore has something to prove */
	}
	make_keys(r, tokens);
	if (!start_restore(c, r))
		compute_rest(c, r);
}

/* ---- the loop ---- */

static struct request *find_free(struct connector *c)
{
	for (uint32_t i = 0; i < REQUESTS; i++)
		if (!c->requests[i].running)
			return &c->requests[i];
	return NULL;
}

/*
 * The Manager is gone, and with it all it held. What was in flight ends by itself: what was not
 * granted at once, a copy that runs when it is through, so that this waits for no one else.
 */
static void lose_session(struct connector *c)
{
	printf("session lost, %u requests in flight\n", c->running);
	for (uint32_t i = 0; i < REQUESTS; i++) {
		struct request *r = &c->requests[i];
		while (r->op)
			operation_ended(c, r, okv_op_wait(r->op, -1, NULL));
	}
	disconnect(c);
}

static void take_completions(struct connector *c)
{
	struct okv_completion done[4];
	uint32_t n;
	int status;

	while (!(status = okv_engine_poll(c->engine, done, 4, &n)) && n) {
		printf("%u ended of %u in flight\n", n, c->running);
		for (uint32_t i = 0; i < n; i++)
			operation_ended(c, &c->requests[done[i].user_data], done[i].status);
	}
	if (status)
		lose_session(c);
}

static void read_input(struct connector *c)
{
	if (c->input_bytes >= sizeof(c->input))
		return; /* take_lines() makes room first */
	ssize_t n =
		read(STDIN_FILENO, c->input + c->input_bytes, sizeof(c->input) - c->input_bytes);

	c->input_ended = n <= 0;
	c->input_bytes += n > 0 ? (size_t)n : 0;
}

/* As many lines as there are free requests; an overlong one, and the last, need no newline. */
static void take_lines(struct connector *c)
{
	struct request *r;

	while (c->input_bytes && (r = find_free(c))) {
		char *end = memchr(c->input, '\n', c->input_bytes);
		if (!end && !c->input_ended && c->input_bytes < sizeof(c->input))
			return;
		size_t length = end ? (size_t)(end - c->input) : c->input_bytes;
		begin(c, r, c->input, length);
		size_t used = end ? length + 1 : length;
		c->input_bytes -= used;
		memmove(c->input, c->input + used, c->input_bytes);
	}
}

static void run(struct connector *c)
{
	for (;;) {
		connect_now_and_then(c);
		take_lines(c);
		if (c->input_ended && !c->input_bytes && !c->running)
			return;
		bool hungry = !c->input_ended && find_free(c);
		struct pollfd fds[2] = {
			{.fd = hungry ? STDIN_FILENO : -1, .events = POLLIN},
			{.fd = c->engine ? okv_engine_fd(c->engine) : -1, .events = POLLIN},
		};
		if (poll(fds, 2, c->engine || c->hopeless ? -1 : PAUSE_MS) < 0)
			continue;
		if (fds[0].revents)
			read_input(c);
		if (fds[1].revents)
			take_completions(c);
	}
}

static const char usage[] =
	"usage: event_loop [--socket PATH | --embedded] < PROMPTS\n"
	"\n"
	"Every line of input is a prompt, one byte a token, 16 tokens a block; what is left of\n"
	"a block is not cached. What the cache has of a prompt is restored, the rest is\n"
	"computed and published, and a line says so. At the end of input it ends; exit 0:\n"
	"every restored byte was exact. Without a Manager it computes all, and looks for one\n"
	"meanwhile.\n";

int main(int argc, char **argv)
{
	static struct okv_manager_options inside;
	static struct connector c;

	okv_engine_options_init(&c.options);
	okv_manager_options_init(&inside);
	inside.memory_bytes = 64u << 20;
	if (argc == 3 && !strcmp(argv[1], "--socket")) {
		c.options.socket_path = argv[2];
	} else if (argc == 2 && !strcmp(argv[1], "--embedded")) {
		c.options.flags = OKV_ENGINE_EMBEDDED;
		c.options.embedded = &inside;
	} else if (argc == 2 && !strcmp(argv[1], "--help")) {
		fputs(usage, stdout);
		return 0;
	} else if (argc != 1) {
		fputs(usage, stderr);
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	run(&c);
	disconnect(&c);
	printf("%u requests, %u wrong pages\n", c.taken, c.wrong);
	return c.wrong ? 1 : 0;
}
