#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every source file and script names its license in its first five lines. Usage: spdx.sh ROOT
set -eu
cd "$1"
files=$(mktemp)
trap 'rm -f "$files"' EXIT

find meson.build pyproject.toml lib include examples tools kernels pkgconfig python test doc \
	-type f '(' -name '*.[ch]' -o -name '*.cu' -o -name '*.pml' -o -name '*.py' -o -name '*.pyi' \
	-o -name '*.sh' -o -name '*.toml' -o -name meson.build ')' | sort >"$files"
fail=0
while read -r file; do
	head -n 5 "$file" | grep -qF 'SPDX-License-Identifier: Apache-2.0' || {
		echo "$file: no \"SPDX-License-Identifier: Apache-2.0\" in its first five lines"
		fail=1
	}
done <"$files"
[ "$fail" = 0 ] && echo "$(wc -l <"$files") files, each with its license"
exit "$fail"
