/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Check the page numbers that a caller names. */
#ifndef OKI_PLAN_PAGE_CHECK_H
#define OKI_PLAN_PAGE_CHECK_H

#include <stdint.h>

#include <orbitkv/status.h>

/*
 * Check a page list: every page below page_count, none twice. The error's text has the group and
 * the index of the first bad page. Allocates at most about page_count bits for the call.
 */
int oki_pages_check(uint32_t group, const uint32_t *pages, uint64_t count, uint32_t page_count,
		    struct okv_error *err);

#endif
