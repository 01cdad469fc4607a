/* SPDX-License-Identifier: Apache-2.0 */
/* [E] A rank of two_ranks: stores and restores its half of every block. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "two_ranks.h"

#define LAYERS 4u
#define SEGMENTS 2u	    /* K and V */
#define SEGMENT_BYTES 4096u /* 16 tokens x 4 of 8 heads x 32 values x 2 bytes */
#define PAGES 12u
#define PAGE_STRIDE (SEGMENTS * SEGMENT_BYTES + 512u) /* with a gap that nobody may touch */
#define LAYER_BYTES (PAGES * PAGE_STRIDE)
#define GAP 0xee

void make_keys(uint8_t *ret_keys)
{
	for (uint32_t block = 0; block < BLOCKS; block++)
		snprintf((char *)ret_keys + block * KEY_BYTES, KEY_BYTES, "prefix-%u", block);
}

/* The schema is one rank's; rank_slots says that a block has two such parts. */
int open_side(struct side *side, const char *socket, const char *salt)
{
	struct okv_layer_schema layers[LAYERS] = {0};
	struct okv_group_schema group = {
		.kind = OKV_GROUP_FULL,
		.block_tokens = BLOCK_TOKENS,
		.layer_count = LAYERS,
		.layout_tag = "NHD/f16",
		.layers = layers,
	};
	struct okv_engine_options engine;
	struct okv_namespace_options ns;
	int r;

	for (uint32_t l = 0; l < LAYERS; l++) {
		layers[l].order = l;
		layers[l].segment_count = SEGMENTS;
		layers[l].segment_bytes[0] = layers[l].segment_bytes[1] = SEGMENT_BYTES;
	}
	okv_engine_options_init(&engine);
	engine.socket_path = socket;
	okv_namespace_options_init(&ns);
	ns.model = "two-ranks";
	ns.salt = salt; /* a run never finds the blocks of another one */
	ns.rank_slots = RANKS;
	ns.group_count = 1;
	ns.groups = &group;
	r = okv_engine_open(&engine, &side->engine, &side->err);
	return r ? r : okv_namespace_open(side->engine, &ns, &side->ns, &side->err);
}

void close_side(struct side *side)
{
	okv_namespace_close(side->ns);
	okv_engine_close(side->engine);
}

struct rank {
	struct side side;
	struct okv_binding *binding;
	uint32_t slot;
	uint8_t keys[BLOCKS * KEY_BYTES];
	uint8_t memory[LAYERS][LAYER_BYTES];
};

static uint8_t pattern(uint32_t slot, uint32_t block, uint32_t layer, uint32_t offset)
{
	uint32_t x = slot * 0x9e3779b1u ^ block * 0x85ebca6bu ^ layer * 0xc2b2ae35u ^
		     (offset + 1) * 0x27d4eb2fu;

	x = (x ^ x >> 15) * 0x2c1b3c6du;
	return (uint8_t)(x >> 24);
}

static int bind_rank(struct rank *rank)
{
	struct okv_layer layers[LAYERS] = {0};
	struct okv_binding_options opts;

	for (uint32_t l = 0; l < LAYERS; l++) {
		layers[l].base = rank->memory[l];
		layers[l].length = LAYER_BYTES;
		layers[l].page_stride = PAGE_STRIDE;
		layers[l].page_count = PAGES;
		layers[l].segment_count = SEGMENTS;
		layers[l].segment_offset[1] = SEGMENT_BYTES;
		layers[l].segment_bytes[0] = layers[l].segment_bytes[1] = SEGMENT_BYTES;
	}
	okv_binding_options_init(&opts);
	opts.device = OKV_DEVICE_HOST;
	opts.rank_slot = rank->slot;
	opts.layer_count = LAYERS;
	opts.layers = layers;
	return okv_binding_register(rank->side.ns, &opts, &rank->binding, &rank->side.err);
}

static int rank_publish(struct rank *rank, const struct command *cmd, struct reply *reply)
{
	uint32_t pages[BLOCKS];
	struct okv_publish_group group = {
		.keys = {.count = cmd->count,
			 .key_bytes = KEY_BYTES,
			 .keys = rank->keys + cmd->first * KEY_BYTES},
		.first_position = cmd->first,
		.tokens = cmd->count * BLOCK_TOKENS,
		.parent = cmd->first ? rank->keys + (cmd->first - 1) * KEY_BYTES : NULL,
		.pages = pages,
	};
	struct okv_publish_options opts;
	struct okv_op_result result = {0};
	struct okv_op *op;
	int r;

	for (uint32_t i = 0; i < cmd->count; i++) {
		pages[i] = cmd->first + i;
		for (uint32_t l = 0; l < LAYERS; l++) {
			uint8_t *page = rank->memory[l] + pages[i] * PAGE_STRIDE;

			for (uint32_t byte = 0; byte < SEGMENTS * SEGMENT_BYTES; byte++)
				page[byte] = pattern(rank->slot, cmd->first + i, l, byte);
		}
	}
	okv_publish_options_init(&opts);
	opts.group_count = 1;
	opts.groups = &group;
	r = okv_publish_start(rank->binding, &opts, &op, &rank->side.err);
	if (r)
		return r;
	r = okv_op_wait(op, -1, &result);
	reply->blocks = (uint32_t)result.blocks;
	okv_op_release(op);
	return r;
}

/* Restored pages count down from the last one; every other byte must still be as wiped. */
static uint64_t wrong_bytes(const struct rank *rank, uint32_t layer, uint32_t restored)
{
	uint64_t wrong = 0;

	for (uint32_t i = 0; i < LAYER_BYTES; i++) {
		uint32_t block = PAGES - 1 - i / PAGE_STRIDE;
		uint32_t offset = i % PAGE_STRIDE;
		bool payload = block < restored && offset < SEGMENTS * SEGMENT_BYTES;

		wrong += rank->memory[layer][i] !=
			 (payload ? pattern(rank->slot, block, layer, offset) : GAP);
	}
	return wrong;
}

static int rank_restore(struct rank *rank, const struct command *cmd, struct reply *reply)
{
	uint32_t pages[BLOCKS];
	struct okv_restore_group group = {.count = cmd->count, .pages = pages};
	struct okv_restore_options opts;
	struct okv_op_result result = {0};
	struct okv_lease *lease;
	struct okv_op *op;
	int r = okv_lease_open(rank->side.ns, &cmd->lease, &lease, &rank->side.err);

	if (r)
		return r;
	memset(rank->memory, GAP, sizeof(rank->memory));
	for (uint32_t i = 0; i < cmd->count; i++)
		pages[i] = PAGES - 1 - i;
	okv_restore_options_init(&opts);
	opts.group_count = 1;
	opts.groups = &group;
	r = okv_restore_start(rank->binding, lease, &opts, &op, &rank->side.err);
	if (r)
		goto release_lease;
	for (uint32_t l = 0; l < LAYERS && !r; l++) {
		r = okv_op_wait_layer(op, l, -1);
		reply->wrong_bytes += r ? 0 : wrong_bytes(rank, l, cmd->count);
	}
	r = okv_op_wait(op, -1, &result);
	reply->blocks = (uint32_t)result.blocks;
	okv_op_release(op);
release_lease:
	okv_lease_release(lease);
	return r;
}

int rank_main(uint32_t slot, const char *socket, const char *salt)
{
	struct rank *rank = calloc(1, sizeof(*rank));
	struct command cmd;
	int r;

	if (!rank)
		return 1;
	rank->slot = slot;
	make_keys(rank->keys);
	memset(rank->memory, GAP, sizeof(rank->memory));
	r = open_side(&rank->side, socket, salt);
	if (!r)
		r = bind_rank(rank);
	while (!r && read(STDIN_FILENO, &cmd, sizeof(cmd)) == (ssize_t)sizeof(cmd)) {
		struct reply reply = {0};

		reply.status = cmd.verb == PUBLISH ? rank_publish(rank, &cmd, &reply)
						   : rank_restore(rank, &cmd, &reply);
		snprintf(reply.text, sizeof(reply.text), "%.95s", rank->side.err.text);
		if (write(STDOUT_FILENO, &reply, sizeof(reply)) != (ssize_t)sizeof(reply))
			break;
	}
	if (r)
		fprintf(stderr, "rank %u: %s: %s\n", slot, okv_status_name(r), rank->side.err.text);
	okv_binding_unregister(rank->binding);
	close_side(&rank->side);
	free(rank);
	return r ? 1 : 0;
}
