/* SPDX-License-Identifier: Apache-2.0 */
/* [B] Prints every edge of lib/grant/state.c, one a line, as the model prints the ones it takes. */
#include <stdio.h>
#include "grant/state.h"

int main(void)
{
	for (uint32_t from = 0; from < OKW_STATES; from++) {
		for (uint32_t to = 0; to < OKW_STATES; to++) {
			enum oki_mover mover = oki_edge(from, to);

			if (mover == OKI_MOVER_NONE)
				continue;
			printf("edge %c %s %s\n", mover == OKI_MOVER_ENGINE ? 'E' : 'M',
			       oki_state_name(from), oki_state_name(to));
		}
	}
	return 0;
}
