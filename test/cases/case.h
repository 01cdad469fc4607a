/* SPDX-License-Identifier: Apache-2.0 */
/* What the cases share: Managers, engines whose every byte is known, and ways to look at both. */
#ifndef TEST_CASES_CASE_H
#define TEST_CASES_CASE_H

#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <orbitkv/orbitkv.h>

#define CASE_KEY 16u /* bytes of a key */
#define CASE_GROUPS 4u
#define CASE_LAYERS 64u /* of one group */

/* What the last call of the kit that failed said. */
extern struct okv_error case_err;

/* Say why and exit with 2: the case cannot go on. */
__attribute__((noreturn, format(printf, 1, 2))) void case_die(const char *format, ...);
#define case_must(call)                                                                     \
	do {                                                                                \
		int rc_ = (call);                                                           \
		if (rc_)                                                                    \
			case_die("%s: %s: %s", #call, okv_status_name(rc_), case_err.text); \
	} while (0)

double case_now(void); /* seconds */
/* For a case about what goes on while time passes. */
void case_pause(double seconds);
/* Wait for a condition; false when it did not come about in so many seconds. */
#define case_until(condition, seconds)                               \
	({                                                           \
		double end_ = case_now() + (seconds);                \
		bool is_so_;                                         \
		while (!(is_so_ = (condition)) && case_now() < end_) \
			case_pause(0.005);                           \
		is_so_;                                              \
	})

/* ---- Managers ---- */

struct case_manager {
	pid_t pid;
	char dir[32];
	char socket[64];
};

#define CASE_OPTIONS(...)         \
	(const char *const[])     \
	{                         \
		__VA_ARGS__, NULL \
	}
/* Make a folder for its socket, start it with these options (NULL: none), wait until it is ready.
 * The build's own Manager, or $ORBITKV_MANAGER; $CASE_LOG names a file for what it logs. */
void case_manager_start(struct case_manager *m, const char *memory, const char *const *options);
/* The same where it was before; false: it ended instead of becoming ready. */
bool case_manager_again(struct case_manager *m, const char *memory, const char *const *options);
/* Signal it, wait for its end and take the folder away; its wait status. */
int case_manager_end(struct case_manager *m, int sig);
/* The same, but the folder and what is in it stays. */
int case_manager_kill(struct case_manager *m, int sig);
const char *case_manager_binary(void);
struct okv_manager_status case_status(const char *socket);
/* What a Manager has and holds, in one line. */
void case_show_status(const char *what, const char *socket);
/* A number of kB of /proc/PID/status, or of /proc/meminfo for pid 0; -1: not there. */
long case_proc_kb(pid_t pid, const char *field);
int case_descriptors(pid_t pid);

/* ---- engines ---- */

struct case_group {
	uint32_t kind;
	uint32_t block_tokens;
	uint32_t window_tokens;
	uint32_t layers;
	uint64_t bytes; /* of a block in a layer, one segment */
	const char *tag;
};

struct case_identity {
	const char *model;
	const char *revision;
	const char *dtype;
	const char *salt;
	uint32_t rank_slots;
	uint32_t stage, stages;
};

/* One rank on the host device; page p of layer l of group g lies at case_page(). */
struct case_rank {
	struct okv_engine *engine;
	struct okv_namespace *ns;
	struct okv_binding *binding;
	uint32_t slot;
	uint32_t pages;
	uint32_t group_count;
	struct case_group groups[CASE_GROUPS];
	uint8_t *memory[CASE_GROUPS];
};

/* socket NULL: embedded, with so many bytes. */
int case_engine(const char *socket, uint64_t memory, struct okv_engine **ret_engine);
int case_namespace(struct okv_engine *engine, const struct case_identity *identity,
		   const struct case_group *groups, uint32_t count, struct okv_namespace **ret_ns);
/* Bind memory of the rank's own, or memory[g] for group g. */
int case_bind(struct case_rank *r, struct okv_namespace *ns, const struct case_group *groups,
	      uint32_t count, uint32_t slot, uint32_t pages, uint8_t *const *memory);
/* Engine, namespace and binding with one rank slot, model "case". */
int case_rank_open(struct case_rank *r, const char *socket, const struct case_group *groups,
		   uint32_t count, uint32_t pages);
void case_rank_close(struct case_rank *r);
uint64_t case_group_bytes(const struct case_rank *r, uint32_t group);
uint8_t *case_page(const struct case_rank *r, uint32_t group, uint32_t layer, uint32_t page);
/* The bytes that the block with this key has, in every layer. */
void case_fill(struct case_rank *r, uint32_t group, const uint8_t *key, uint32_t page);
uint64_t case_wrong(const struct case_rank *r, uint32_t group, const uint8_t *key, uint32_t page);
void case_wipe(struct case_rank *r);

/* Keys of blocks first to first + n - 1 of a sequence; never freed by the kit. */
uint8_t *case_keys(uint64_t sequence, uint32_t first, uint32_t n);

/* Publish blocks of one group from these pages; a key lies before keys unless first is 0. */
int case_publish_start(struct case_rank *r, uint32_t group, const uint8_t *keys, uint32_t first,
		       uint32_t n, const uint32_t *pages, uint32_t flags, struct okv_op **ret_op);
/* The same from pages 0, 1, … (modulo the rank's), filled before, to its end. ret_result: or NULL
 */
int case_publish(struct case_rank *r, uint32_t group, const uint8_t *keys, uint32_t first,
		 uint32_t n, struct okv_op_result *ret_result);
/* Wait, release. ret_result: or NULL */
int case_end(struct okv_op *op, struct okv_op_result *ret_result);

struct case_ask {
	uint32_t group;
	uint32_t count;
	const uint8_t *keys;
};
/* *ret_lease is NULL where nothing was found; ret_lease: NULL with OKV_LOOKUP_PEEK. */
int case_lookup(struct okv_namespace *ns, const struct case_ask *asks, uint32_t count,
		uint32_t flags, uint32_t consumers, struct okv_lookup_result *ret_result,
		struct okv_lease **ret_lease);
/* Look up n keys of group 0 for one consumer. */
int case_find(struct okv_namespace *ns, const uint8_t *keys, uint32_t n,
	      struct okv_lookup_result *ret_result, struct okv_lease **ret_lease);
/* How many blocks of the group a peek finds usable. */
uint32_t case_hit(struct okv_namespace *ns, uint32_t group, const uint8_t *keys, uint32_t n);
/* Restore all that a lookup found into pages first_page, … of each group, to the end. */
int case_restore(struct case_rank *r, struct okv_lease *lease,
		 const struct okv_lookup_result *found, uint32_t first_page,
		 struct okv_op_result *ret_result);
void case_show(const char *what, const struct okv_lookup_result *found);

/* ---- a copy that stops ---- */

/* From now on who touches these whole pages of memory waits. One gate in a process. */
void case_gate_close(void *at, size_t bytes);
bool case_gate_met(void);
void case_gate_open(void);

#endif
