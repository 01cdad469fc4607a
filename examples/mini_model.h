/* SPDX-License-Identifier: Apache-2.0 */
/* [E] A small decoder-only transformer in plain C: the model that mini_engine serves. */
#ifndef MINI_MODEL_H
#define MINI_MODEL_H

#include <stdint.h>

#include "mini_kv.h"

#define MINI_DIM 128u
#define MINI_HEADS 4u
#define MINI_FF 512u
#define MINI_VOCAB 256u /* bytes are tokens */

struct mini_model;

/**
 * Called once per layer of a run, before that layer's pages are read or written. A result other
 * than 0 ends the run with that result.
 */
typedef int mini_gate_fn(void *arg, uint32_t layer);

/** Weights from a seed: the same seed is the same model. NULL when memory runs out. */
struct mini_model *mini_model_create(uint64_t seed, uint32_t max_positions);
void mini_model_destroy(struct mini_model *m);

/**
 * Compute tokens[first] to tokens[first + count - 1], whose KV goes to the pages that kv maps for
 * these positions, and write the MINI_VOCAB logits of the last one. The KV of all earlier
 * positions must be in its pages, at the latest when the layer's gate returns; gate may be NULL.
 *
 * What is computed for a position does not depend on how positions are cut into runs: each token
 * goes through the same operations in the same order. Equal KV gives bitwise equal logits.
 */
int mini_model_run(struct mini_model *m, struct mini_kv *kv, const uint8_t *tokens, uint32_t first,
		   uint32_t count, mini_gate_fn *gate, void *arg, float *ret_logits);

#endif
