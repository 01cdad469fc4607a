/* SPDX-License-Identifier: Apache-2.0 */
/* [E] RMSNorm, rotary attention over paged KV, SwiGLU. Single-threaded and deterministic. */
#include "mini_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Tokens that one pass over the weights serves. Not visible in any result. */
#define CHUNK 32u
#define HEADS_PER_KV (MINI_HEADS / MINI_KV_HEADS)
#define HALF (MINI_HEAD_DIM / 2)
#define NORM_EPSILON 1e-5f
#define SHARPNESS 5.0f /* random weights attend to everything alike; this makes them choose */

typedef float lanes __attribute__((vector_size(16)));

struct weights {
	float *q, *k, *v, *o; /* [out][in] */
	float *gate, *up, *down;
};

struct mini_model {
	struct weights layers[MINI_LAYERS];
	float *embed, *head;
	float *memory;	  /* all of the above */
	float *cos, *sin; /* [position][HALF] */
	float *scores;
	float x[CHUNK * MINI_DIM] __attribute__((aligned(64)));
	float norm[CHUNK * MINI_DIM] __attribute__((aligned(64)));
	float q[CHUNK * MINI_DIM] __attribute__((aligned(64)));
	float k[CHUNK * MINI_KV_DIM] __attribute__((aligned(64)));
	float v[CHUNK * MINI_KV_DIM] __attribute__((aligned(64)));
	float mixed[CHUNK * MINI_DIM] __attribute__((aligned(64)));
	float gated[CHUNK * MINI_FF] __attribute__((aligned(64)));
	float up[CHUNK * MINI_FF] __attribute__((aligned(64)));
};

/* About normal with variance 1 / inputs: the sum of four 16-bit pieces of one random number. */
static void fill(float *w, size_t count, uint32_t inputs, uint64_t *state)
{
	const float scale = sqrtf(3.0f / (float)inputs) / 65536.0f;

	for (size_t i = 0; i < count; i++) {
		uint64_t r = mini_random(state);
		uint64_t sum = (r & 0xffff) + (r >> 16 & 0xffff) + (r >> 32 & 0xffff) + (r >> 48);

		w[i] = ((float)sum - 131070.0f) * scale;
	}
}

static float *take(float **next, uint32_t outputs, uint32_t inputs, uint64_t *state)
{
	float *w = *next;

	*next += (size_t)outputs * inputs;
	fill(w, (size_t)outputs * inputs, inputs, state);
	return w;
}

static void make_weights(struct mini_model *m, uint64_t seed)
{
	uint64_t state = seed * 0x9e3779b97f4a7c15ull | 1;
	float *next = m->memory;

	m->embed = take(&next, MINI_VOCAB, MINI_DIM, &state);
	m->head = take(&next, MINI_VOCAB, MINI_DIM, &state);
	for (uint32_t l = 0; l < MINI_LAYERS; l++) {
		struct weights *w = &m->layers[l];

		w->q = take(&next, MINI_DIM, MINI_DIM, &state);
		w->k = take(&next, MINI_KV_DIM, MINI_DIM, &state);
		w->v = take(&next, MINI_KV_DIM, MINI_DIM, &state);
		w->o = take(&next, MINI_DIM, MINI_DIM, &state);
		w->gate = take(&next, MINI_FF, MINI_DIM, &state);
		w->up = take(&next, MINI_FF, MINI_DIM, &state);
		w->down = take(&next, MINI_DIM, MINI_FF, &state);
	}
}

static void make_angles(struct mini_model *m, uint32_t positions)
{
	for (uint32_t p = 0; p < positions; p++) {
		for (uint32_t i = 0; i < HALF; i++) {
			float rate = powf(10000.0f, -2.0f * (float)i / (float)MINI_HEAD_DIM);

			m->cos[p * HALF + i] = cosf((float)p * rate);
			m->sin[p * HALF + i] = sinf((float)p * rate);
		}
	}
}

struct mini_model *mini_model_create(uint64_t seed, uint32_t max_positions)
{
	const size_t per_layer =
		2 * MINI_DIM * (MINI_DIM + MINI_KV_DIM) + 3 * (size_t)MINI_FF * MINI_DIM;
	const size_t total = 2 * (size_t)MINI_VOCAB * MINI_DIM + MINI_LAYERS * per_layer;
	struct mini_model *m = aligned_alloc(64, (sizeof(*m) + 63) / 64 * 64);

	if (!m)
		return NULL;
	memset(m, 0, sizeof(*m));
	m->memory = aligned_alloc(64, total * sizeof(float));
	m->cos = calloc((size_t)max_positions * HALF, sizeof(float));
	m->sin = calloc((size_t)max_positions * HALF, sizeof(float));
	m->scores = calloc(max_positions, sizeof(float));
	if (!m->memory || !m->cos || !m->sin || !m->scores) {
		mini_model_destroy(m);
		return NULL;
	}
	make_weights(m, seed);
	make_angles(m, max_positions);
	return m;
}

void mini_model_destroy(struct mini_model *m)
{
	if (!m)
		return;
	free(m->scores);
	free(m->sin);
	free(m->cos);
	free(m->memory);
	free(m);
}

/* count is a multiple of 16, both sides are aligned; the order of additions is fixed. */
static inline float dot(const float *a, const float *b, uint32_t count)
{
	lanes s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};

	for (uint32_t i = 0; i < count; i += 16) {
		const lanes *va = (const lanes *)(const void *)(a + i);
		const lanes *vb = (const lanes *)(const void *)(b + i);

		s0 += va[0] * vb[0];
		s1 += va[1] * vb[1];
		s2 += va[2] * vb[2];
		s3 += va[3] * vb[3];
	}
	s0 = (s0 + s1) + (s2 + s3);
	return (s0[0] + s0[1]) + (s0[2] + s0[3]);
}

/* out[t] = w in[t] for each of count tokens; one row of w serves them all while it is in cache. */
static void matmul(float *out, const float *w, const float *in, uint32_t count, uint32_t outputs,
		   uint32_t inputs)
{
	for (uint32_t row = 0; row < outputs; row++) {
		const float *r = w + (size_t)row * inputs;

		for (uint32_t t = 0; t < count; t++)
			out[(size_t)t * outputs + row] = dot(r, in + (size_t)t * inputs, inputs);
	}
}

static void rms_norm(float *out, const float *in, uint32_t count)
{
	for (uint32_t t = 0; t < count; t++, out += MINI_DIM, in += MINI_DIM) {
		float scale = 1.0f / sqrtf(dot(in, in, MINI_DIM) / MINI_DIM + NORM_EPSILON);

		for (uint32_t i = 0; i < MINI_DIM; i++)
			out[i] = in[i] * scale;
	}
}

static void rotate(const struct mini_model *m, float *heads, uint32_t count, uint32_t position)
{
	const float *c = m->cos + (size_t)position * HALF;
	const float *s = m->sin + (size_t)position * HALF;

	for (uint32_t h = 0; h < count; h++, heads += MINI_HEAD_DIM) {
		for (uint32_t i = 0; i < HALF; i++) {
			float a = heads[i], b = heads[i + HALF];

			heads[i] = a * c[i] - b * s[i];
			heads[i + HALF] = a * s[i] + b * c[i];
		}
	}
}

/* scores become probabilities of the positions up to and including last */
static void softmax(float *scores, uint32_t last)
{
	float max = scores[0], sum = 0.0f;

	for (uint32_t i = 1; i <= last; i++)
		max = scores[i] > max ? scores[i] : max;
	for (uint32_t i = 0; i <= last; i++) {
		scores[i] = expf(scores[i] - max);
		sum += scores[i];
	}
	for (uint32_t i = 0; i <= last; i++)
		scores[i] /= sum;
}

static void attend(const struct mini_model *m, const struct mini_kv *kv, uint32_t layer,
		   uint32_t position, const float *q, float *out)
{
	const float scale = SHARPNESS / sqrtf((float)MINI_HEAD_DIM);

	for (uint32_t h = 0; h < MINI_HEADS; h++, q += MINI_HEAD_DIM, out += MINI_HEAD_DIM) {
		const size_t skip = (size_t)(h / HEADS_PER_KV) * MINI_HEAD_DIM;
		lanes sum[MINI_HEAD_DIM / 4] = {{0}};

		for (uint32_t i = 0; i <= position; i++)
			m->scores[i] =
				dot(q, mini_kv_k(kv, layer, i) + skip, MINI_HEAD_DIM) * scale;
		softmax(m->scores, position);
		for (uint32_t i = 0; i <= position; i++) {
			const float p = m->scores[i];
			const float *value = mini_kv_v(kv, layer, i) + skip;
			const lanes *v = (const lanes *)(const void *)value;

			for (uint32_t j = 0; j < MINI_HEAD_DIM / 4; j++)
				sum[j] += v[j] * p;
		}
		memcpy(out, sum, sizeof(sum));
	}
}

static void add(float *to, const float *from, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		to[i] += from[i];
}

static void attention_layer(struct mini_model *m, struct mini_kv *kv, uint32_t layer,
			    uint32_t first, uint32_t count)
{
	const struct weights *w = &m->layers[layer];

	for (uint32_t t = 0; t < count; t++) {
		rotate(m, m->q + t * MINI_DIM, MINI_HEADS, first + t);
		rotate(m, m->k + t * MINI_KV_DIM, MINI_KV_HEADS, first + t);
		memcpy(mini_kv_k(kv, layer, first + t), m->k + t * MINI_KV_DIM,
		       MINI_KV_DIM * sizeof(float));
		memcpy(mini_kv_v(kv, layer, first + t), m->v + t * MINI_KV_DIM,
		       MINI_KV_DIM * sizeof(float));
		attend(m, kv, layer, first + t, m->q + t * MINI_DIM, m->mixed + t * MINI_DIM);
	}
	matmul(m->norm, w->o, m->mixed, count, MINI_DIM, MINI_DIM);
	add(m->x, m->norm, count * MINI_DIM);
}

static void mlp_layer(struct mini_model *m, uint32_t layer, uint32_t count)
{
	const struct weights *w = &m->layers[layer];

	rms_norm(m->norm, m->x, count);
	matmul(m->gated, w->gate, m->norm, count, MINI_FF, MINI_DIM);
	matmul(m->up, w->up, m->norm, count, MINI_FF, MINI_DIM);
	for (uint32_t i = 0; i < count * MINI_FF; i++)
		m->gated[i] = m->gated[i] / (1.0f + expf(-m->gated[i])) * m->up[i];
	matmul(m->norm, w->down, m->gated, count, MINI_DIM, MINI_FF);
	add(m->x, m->norm, count * MINI_DIM);
}

static int run_chunk(struct mini_model *m, struct mini_kv *kv, const uint8_t *tokens,
		     uint32_t first, uint32_t count, mini_gate_fn *gate, void *arg)
{
	for (uint32_t t = 0; t < count; t++)
		memcpy(m->x + t * MINI_DIM, m->embed + (size_t)tokens[first + t] * MINI_DIM,
		       MINI_DIM * sizeof(float));
	for (uint32_t l = 0; l < MINI_LAYERS; l++) {
		const struct weights *w = &m->layers[l];
		int r;

		rms_norm(m->norm, m->x, count);
		matmul(m->q, w->q, m->norm, count, MINI_DIM, MINI_DIM);
		matmul(m->k, w->k, m->norm, count, MINI_KV_DIM, MINI_DIM);
		matmul(m->v, w->v, m->norm, count, MINI_KV_DIM, MINI_DIM);
		r = gate ? gate(arg, l) : 0;
		if (r)
			return r;
		attention_layer(m, kv, l, first, count);
		mlp_layer(m, l, count);
	}
	return 0;
}

int mini_model_run(struct mini_model *m, struct mini_kv *kv, const uint8_t *tokens, uint32_t first,
		   uint32_t count, mini_gate_fn *gate, void *arg, float *ret_logits)
{
	uint32_t in_chunk = 0;

	for (uint32_t done = 0; done < count; done += in_chunk) {
		int r;

		in_chunk = count - done < CHUNK ? count - done : CHUNK;
		r = run_chunk(m, kv, tokens, first + done, in_chunk, gate, arg);
		if (r)
			return r;
		gate = NULL;
	}
	rms_norm(m->norm, m->x + (size_t)(in_chunk - 1) * MINI_DIM, 1);
	matmul(ret_logits, m->head, m->norm, 1, MINI_VOCAB, MINI_DIM);
	return 0;
}
