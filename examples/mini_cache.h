/* SPDX-License-Identifier: Apache-2.0 */
/* [E] What mini_engine asks of OrbitKV: publish blocks, find them, bring them back. */
#ifndef MINI_CACHE_H
#define MINI_CACHE_H

#include <stdbool.h>
#include <orbitkv/orbitkv.h>

#include "cuda_pages.h"
#include "mini_kv.h"

struct mini_cache_options {
	const char *socket; /* NULL: default path; ignored when embedded */
	bool embedded;
	bool cuda;
	uint64_t seed; /* of the weights: part of the cache identity */
};

/* One engine, one namespace, one binding over the pages of a struct mini_kv. */
struct mini_cache {
	struct okv_engine *engine;
	struct okv_namespace *ns;
	struct okv_binding *binding;
	struct mini_kv *kv;
	struct cuda_pages *gpu; /* NULL on the host device */
	struct okv_error err;	/* of the call that failed last */
	struct okv_op *publish;
	struct okv_op *restore;
	struct okv_lease *lease;
};

#define MINI_NO_GPU 77

/** 0, MINI_NO_GPU, or an OKV_E_ code; the reason is in err. Close it in every case. */
int mini_cache_open(struct mini_cache *c, const struct mini_cache_options *opts,
		    struct mini_kv *kv);
void mini_cache_close(struct mini_cache *c);

/** Put what the kv pages hold into GPU memory; nothing to do on the host device. */
int mini_cache_upload(struct mini_cache *c);

/** Start publishing the first blocks; their pages are only read until the wait returns. */
int mini_cache_publish(struct mini_cache *c, const uint8_t *keys, uint32_t blocks);
int mini_cache_publish_wait(struct mini_cache *c, struct okv_op_result *ret_result);

/** Find and pin the longest usable prefix of these blocks: 0 blocks is a miss. */
int mini_cache_find(struct mini_cache *c, const uint8_t *keys, uint32_t blocks,
		    uint32_t *ret_blocks);
/** Start bringing the found blocks into the pages that kv maps for them. */
int mini_cache_restore(struct mini_cache *c, uint32_t blocks);
/** Wait until this layer of the running restore can be read in kv. */
int mini_cache_wait_layer(struct mini_cache *c, uint32_t layer);
/** Wait until all is drained; its status says whether anything computed from it may be kept. */
int mini_cache_restore_wait(struct mini_cache *c, struct okv_op_result *ret_result);

#endif
