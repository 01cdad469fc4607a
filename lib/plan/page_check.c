/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Check the page numbers that a caller names. */
#include "plan/page_check.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/error.h"

/* The set of pages seen so far: a bit for each page of the group, or, for few of many pages, a hash
 * table. */
struct seen {
	uint64_t *bits;
	uint32_t *places; /* page + 1; 0: free */
	uint32_t shift;	  /* of a 32-bit hash; at least half of the places stay free */
};

static bool seen_init(struct seen *seen, uint64_t count, uint32_t page_count)
{
	uint32_t places = 2;
	*seen = (struct seen){.shift = 31};
	for (; places < 2 * count && places <= page_count / 32u; places *= 2)
		seen->shift--;
	if (places >= 2 * count && places <= page_count / 32u)
		seen->places = calloc(places, sizeof(seen->places[0]));
	else
		seen->bits = calloc(page_count / 64u + 1u, sizeof(seen->bits[0]));
	return seen->places || seen->bits;
}

/* Add a page. True if it was there before. */
static bool seen_add(struct seen *seen, uint32_t page)
{
	if (seen->bits) {
		uint64_t *word = &seen->bits[page / 64], bit = 1ull << (page & 63);
		bool before = *word & bit;
		*word |= bit;
		return before;
	}
	uint32_t mask = UINT32_MAX >> seen->shift, at = page * 0x9e3779b1u >> seen->shift;
	for (; seen->places[at]; at = (at + 1) & mask)
		if (seen->places[at] == page + 1)
			return true;
	seen->places[at] = page + 1;
	return false;
}

int oki_pages_check(uint32_t group, const uint32_t *pages, uint64_t count, uint32_t page_count,
		    struct okv_error *err)
{
	int rc = 0;
	struct seen seen;
	if (count == 0)
		return 0;
	if (!pages)
		return oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				"group %u: %llu pages at NULL", group, (unsigned long long)count);
	if (!seen_init(&seen, count, page_count))
		return oki_fail(err, OKV_E_NOMEM, OKV_STAGE_ARGUMENTS,
				"group %u: no memory to check %u pages", group, page_count);
	for (uint64_t i = 0; i < count && !rc; i++) {
		if (pages[i] >= page_count)
			rc = oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				      "group %u: pages[%llu] is %u, not below %u", group,
				      (unsigned long long)i, pages[i], page_count);
		else if (seen_add(&seen, pages[i]))
			rc = oki_fail(err, OKV_E_INVAL, OKV_STAGE_ARGUMENTS,
				      "group %u: pages[%llu] is %u, which is named twice", group,
				      (unsigned long long)i, pages[i]);
	}
	free(seen.bits);
	free(seen.places);
	return rc;
}
