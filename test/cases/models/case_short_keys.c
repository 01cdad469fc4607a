/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connector cuts its content hash to two bytes. Is it refused or warned, or does it restore
 * another image's values?
 */
#include "cases/case.h"

static uint16_t short_hash(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return (uint16_t)(x ^ x >> 31);
}

/* What the restore of this lease put into page 1: the image that was published. */
static uint64_t restored(struct case_rank *r, struct okv_lease *lease)
{
	const uint32_t page = 1;
	const struct okv_restore_group g = {.count = 1, .pages = &page};
	struct okv_restore_options o;
	struct okv_op *op = NULL;
	uint64_t image;
	okv_restore_options_init(&o);
	o.group_count = 1;
	o.groups = &g;
	case_must(okv_restore_start(r->binding, lease, &o, &op, &case_err));
	case_must(case_end(op, NULL));
	memcpy(&image, case_page(r, 0, 0, 1), sizeof(image));
	return image;
}

static int store(struct case_rank *r, const struct okv_keys *key, uint64_t image)
{
	const uint32_t page = 0;
	const struct okv_publish_group g = {.keys = *key, .tokens = 16, .pages = &page};
	struct okv_publish_options o;
	struct okv_op *op = NULL;
	memcpy(case_page(r, 0, 0, 0), &image, sizeof(image));
	okv_publish_options_init(&o);
	o.group_count = 1;
	o.groups = &g;
	int rc = okv_publish_start(r->binding, &o, &op, &case_err);
	return rc ? rc : case_end(op, NULL);
}

int main(void)
{
	const struct case_group group = {OKV_GROUP_FULL, 16, 0, 1, 4096, NULL};
	struct case_rank r;
	int wrong = 0, accepted = 0;
	case_must(case_rank_open(&r, NULL, &group, 1, 8));
	for (uint64_t image = 0; image < 3000; image++) {
		const uint16_t hash = short_hash(image);
		const struct okv_keys key = {.count = 1, .key_bytes = 2, .keys = &hash};
		struct okv_lookup_options o;
		struct okv_lookup_result found;
		struct okv_lease *lease;
		okv_lookup_options_init(&o);
		o.group_count = 1;
		o.groups = &key;
		case_must(okv_lookup(r.ns, &o, &found, &lease, &case_err));
		if (lease) {
			wrong += restored(&r, lease) != image;
			okv_lease_release(lease);
		} else {
			accepted += store(&r, &key, image) == 0;
		}
	}
	printf("3,000 images with keys of 2 bytes: %d stored, another image's values restored %d "
	       "times\n",
	       accepted, wrong);
	case_rank_close(&r);
	return wrong != 0;
}
