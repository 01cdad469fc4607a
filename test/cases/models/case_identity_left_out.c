/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two engines whose values differ in something that neither says, a dtype of the same size. The
 * reader gets the writer's blocks; with the dtype said it does not.
 */
#include "cases/case.h"

int main(void)
{
	const struct case_group group = {OKV_GROUP_FULL, 16, 0, 1, 4096, NULL};
	const struct case_identity silent = {.model = "case"};
	const struct case_identity said = {.model = "case", .dtype = "e5m2"};
	struct case_rank r;
	struct okv_namespace *reader, *other;
	uint8_t *keys = case_keys(1, 0, 8);
	case_must(case_rank_open(&r, NULL, &group, 1, 8));
	case_must(case_publish(&r, 0, keys, 0, 8, NULL));
	case_must(case_namespace(r.engine, &silent, &group, 1, &reader));
	case_must(case_namespace(r.engine, &said, &group, 1, &other));
	uint32_t hits = case_hit(reader, 0, keys, 8);
	printf("neither says its dtype: %u of 8 found\nthe reader says it: %u of 8 found\n", hits,
	       case_hit(other, 0, keys, 8));
	okv_namespace_close(reader);
	okv_namespace_close(other);
	case_rank_close(&r);
	return hits != 0;
}
