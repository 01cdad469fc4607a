/* SPDX-License-Identifier: Apache-2.0 */
/* [E] The value of an option, or what was expected of it. */
#include "tool_option.h"
#include "tool_size.h"

#include <errno.h>
#include <getopt.h>
#include <orbitkv/orbitkv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int tool_expected(const struct tool_option *given, const char *what)
{
	fprintf(stderr, "%s: --%s '%s': expected %s; see --help\n", given->program, given->name,
		given->text, what);
	return -1;
}

int tool_take_size(const struct tool_option *given, uint64_t most, uint64_t *ret_bytes)
{
	char what[128];
	char shown[32];
	uint64_t bytes;

	if (tool_parse_size(given->text, &bytes) && bytes <= most) {
		*ret_bytes = bytes;
		return 0;
	}
	tool_write_size(most, "", shown, sizeof(shown));
	snprintf(what, sizeof(what), "a size from 1 byte to %s, as %s", shown, TOOL_SIZE_FORMS);
	return tool_expected(given, what);
}

int tool_take_count(const struct tool_option *given, uint32_t most, uint32_t *ret_count)
{
	unsigned long long count;
	char what[64];
	char *end;

	errno = 0;
	count = strtoull(given->text, &end, 10);
	if (given->text[0] >= '0' && given->text[0] <= '9' && errno == 0 && *end == '\0' &&
	    count >= 1 && count <= most) {
		*ret_count = (uint32_t)count;
		return 0;
	}
	snprintf(what, sizeof(what), "a whole number from 1 to %u", most);
	return tool_expected(given, what);
}

int tool_take_device(const struct tool_option *given, uint32_t *ret_device)
{
	if (strcmp(given->text, "host") == 0)
		*ret_device = OKV_DEVICE_HOST;
	else if (strcmp(given->text, "cuda") == 0)
		*ret_device = OKV_DEVICE_CUDA;
	else
		return tool_expected(given, "host or cuda");
	return 0;
}

bool tool_bad_option(const char *program, int id, char **argv)
{
	const char *given = argv[optind - 1];

	if (id == ':')
		fprintf(stderr, "%s: %s: expected a value; see --help\n", program, given);
	else if (id == '?' && optopt > 255)
		fprintf(stderr, "%s: %.*s: expected no value; see --help\n", program,
			(int)strcspn(given, "="), given);
	else if (id == '?' && optopt)
		fprintf(stderr, "%s: -%c: there is no such option; see --help\n", program, optopt);
	else if (id == '?')
		fprintf(stderr, "%s: %s: there is no such option, or several; see --help\n",
			program, given);
	return id == '?' || id == ':';
}

void tool_print_version(const char *program)
{
	unsigned v = okv_version();

	printf("%s %u.%u.%u\n", program, v >> 16, v >> 8 & 255, v & 255);
}
