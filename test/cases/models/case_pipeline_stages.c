/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two pipeline stages are two namespaces that evict apart. A scheduler asks both; how much is of
 * use, the smaller answer, when other traffic goes through one of them?
 */
#include "cases/case.h"

int main(void)
{
	const struct case_group group = {OKV_GROUP_FULL, 16, 0, 1, 65536, NULL};
	struct okv_engine *engine;
	struct case_rank r[2];
	uint8_t *keys = case_keys(1, 0, 256), *other = case_keys(2, 0, 700);
	case_must(case_engine(NULL, 64u << 20, &engine));
	for (uint32_t i = 0; i < 2; i++) {
		const struct case_identity id = {.model = "case", .stage = i, .stages = 2};
		struct okv_namespace *ns;
		case_must(case_namespace(engine, &id, &group, 1, &ns));
		case_must(case_bind(&r[i], ns, &group, 1, 0, 1024, NULL));
		case_must(case_publish(&r[i], 0, keys, 0, i ? 200 : 256, NULL));
		printf("stage %u stored %u of 256 blocks\n", i, case_hit(ns, 0, keys, 256));
	}
	case_must(case_publish(&r[1], 0, other, 0, 700, NULL));
	uint32_t first = case_hit(r[0].ns, 0, keys, 256), second = case_hit(r[1].ns, 0, keys, 256);
	printf("after other traffic of stage 1: stage 0 has %u, stage 1 has %u\n", first, second);
	okv_engine_close(engine);
	return first != second;
}
