/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests share: an engine with tensors whose every byte is known. */
#ifndef TEST_SUPPORT_KV_H
#define TEST_SUPPORT_KV_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <orbitkv/orbitkv.h>

/* A plain schema: one full group of equal layers. Zero fields get the default in brackets. */
struct kv_shape {
	uint32_t layers;	  /* [4] */
	uint32_t segments;	  /* [2] */
	uint32_t segment_bytes;	  /* per page [256] */
	uint32_t pages;		  /* [64] */
	uint32_t pages_per_block; /* [1] */
	uint32_t page_pad;	  /* bytes after each segment of a page [0] */
	uint32_t block_tokens;	  /* [16] */
	uint32_t rank_slots;	  /* [1] */
	const char *layout_tag;	  /* ["NHD"] */
	const char *salt;	  /* [NULL] */
};

/* One rank's tensors on the host, in guarded memory: every byte outside a payload is a canary. */
struct kv_rank {
	struct kv_shape shape;
	uint32_t slot;
	uint8_t *memory; /* all layers, with margins */
	uint64_t memory_bytes;
	struct okv_layer *layers;
	struct okv_namespace *ns; /* borrowed */
	struct okv_binding *binding;
};

#define KV_KEY_BYTES 16

/* Fail the running test with the text of err when rc is not 0. */
#define kv_ok(call)                                                                             \
	do {                                                                                    \
		struct okv_error err_ = {0};                                                    \
		struct okv_error *kv_err = &err_;                                               \
		int rc_ = (call);                                                               \
		ck_assert_msg(rc_ == 0, "%s: %s (%s)", #call, okv_status_name(rc_), err_.text); \
		(void)kv_err;                                                                   \
	} while (0)

/* An engine with a Manager inside. memory 0: 16 MiB. */
struct okv_engine *kv_engine_embedded(uint64_t memory, uint32_t flags);
/* One that connects to a socket. */
struct okv_engine *kv_engine_connect(const char *socket_path, uint32_t flags);

struct okv_namespace *kv_namespace(struct okv_engine *engine, const struct kv_shape *shape);
void kv_rank_init(struct kv_rank *rank, const struct kv_shape *shape, uint32_t slot);
int kv_rank_register(struct kv_rank *rank, struct okv_namespace *ns, struct okv_error *err);
/* init and register, or fail the test */
void kv_rank_open(struct kv_rank *rank, struct okv_namespace *ns, const struct kv_shape *shape,
		  uint32_t slot);
void kv_rank_close(struct kv_rank *rank);

/* Key of block i of sequence seq; chained in name only. */
void kv_key(uint64_t seq, uint32_t i, uint8_t key[KV_KEY_BYTES]);
/* count keys from block first on; free() them */
uint8_t *kv_keys(uint64_t seq, uint32_t first, uint32_t count);

/* The byte at `offset` of a segment of a block, as a function of where it belongs. */
uint8_t kv_byte(const uint8_t key[KV_KEY_BYTES], uint32_t slot, uint32_t layer, uint32_t segment,
		uint64_t offset);
/* Write block i of seq into its pages (shape.pages_per_block of them). */
void kv_fill(struct kv_rank *rank, uint64_t seq, uint32_t i, const uint32_t *pages);
/* Bytes of these pages that are not block i of seq. */
uint64_t kv_wrong(const struct kv_rank *rank, uint64_t seq, uint32_t i, const uint32_t *pages);
/* Overwrite every payload byte. */
void kv_poison(struct kv_rank *rank);
/* Payload bytes of a page that are not poison any more. */
uint64_t kv_touched(const struct kv_rank *rank, uint32_t page);
/* Bytes outside all payloads that changed. */
uint64_t kv_canaries_broken(const struct kv_rank *rank);

/* Publish blocks [first, first + count) of seq from consecutive pages starting at page. */
int kv_publish_start(struct kv_rank *rank, uint64_t seq, uint32_t first, uint32_t count,
		     const uint32_t *pages, uint32_t flags, struct okv_op **ret_op,
		     struct okv_error *err);
/* fill, start, wait, release; pages NULL: 0, 1, 2 … */
int kv_publish(struct kv_rank *rank, uint64_t seq, uint32_t first, uint32_t count,
	       const uint32_t *pages, struct okv_op_result *ret_result);
/* Look up blocks [0, count) of seq; ret_lease NULL: peek. Returns usable blocks. */
uint32_t kv_lookup(struct okv_namespace *ns, uint64_t seq, uint32_t count, uint32_t consumers,
		   struct okv_lease **ret_lease);
int kv_restore_start(struct kv_rank *rank, struct okv_lease *lease, uint32_t first, uint32_t count,
		     const uint32_t *pages, uint32_t flags, struct okv_op **ret_op,
		     struct okv_error *err);
/* start, wait, release */
int kv_restore(struct kv_rank *rank, struct okv_lease *lease, uint32_t first, uint32_t count,
	       const uint32_t *pages, uint32_t flags, struct okv_op_result *ret_result);

/* n page numbers: start, start + step, … modulo the rank's pages; free() them */
uint32_t *kv_pages(const struct kv_rank *rank, uint32_t n, uint32_t start, uint32_t step);

/* ---- real processes ---- */

struct kv_manager {
	pid_t pid;
	int out; /* what it prints, for waiting on lines */
	char dir[64];
	char socket_path[96];
	uid_t uid; /* it runs as this user; 0: as the test does */
};

/* Start the binary named by $ORBITKV_MANAGER and wait for its "ready" line. args: NULL-ended,
 * after `serve --socket PATH`. */
void kv_manager_start(struct kv_manager *m, const char *const *args);
/* The same as another user, to whom the directory then belongs; only root can. */
void kv_manager_start_as(struct kv_manager *m, const char *const *args, uid_t uid);
/* The same on the socket path of an earlier one. */
void kv_manager_restart(struct kv_manager *m, const char *const *args);
/* Send a signal and wait for its end; returns the wait status. */
int kv_manager_kill(struct kv_manager *m, int signal);
/* Remove the directory; fails the test when it holds anything but a socket. */
void kv_manager_clean(struct kv_manager *m);
/* Read lines of m->out until one contains text; false at end of file. */
bool kv_manager_wait_line(struct kv_manager *m, const char *text);
struct okv_manager_status kv_manager_status(const struct kv_manager *m);
/* Ask for the status until pred holds; the bound is 20 s of asking, then the test fails. */
void kv_manager_wait(const struct kv_manager *m, bool (*pred)(const struct okv_manager_status *),
		     const char *what);

/* Open descriptors of this process. */
uint32_t kv_fd_count(void);

#endif
