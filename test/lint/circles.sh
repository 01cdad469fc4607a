#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# No two files of the library need each other, directly or around: what a file uses of the others
# can be read from the bottom up. Usage: circles.sh ARCHIVE
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# From "archive[file.o]: symbol type ..." to "user definer symbol".
nm -A -P "$1" | awk '
	{ file = $1; sub(/^.*\//, "", file); sub(/\.c\.o.*$/, ".c", file) }
	$3 ~ /^[TDBR]$/ { defines[$2] = file }
	$3 == "U" { n++; user[n] = file; used[n] = $2 }
	END {
		for (i = 1; i <= n; i++)
			if (used[i] in defines && defines[used[i]] != user[i])
				print user[i], defines[used[i]], used[i]
	}' >"$dir/uses"
[ -s "$dir/uses" ] || {
	echo "$1: no symbols found"
	exit 1
}
cut -d ' ' -f 1,2 "$dir/uses" | sort -u >"$dir/pairs"
if tsort "$dir/pairs" >/dev/null 2>"$dir/loops"; then
	echo "no circles among $(tr ' ' '\n' <"$dir/pairs" | sort -u | wc -l) files"
	exit 0
fi
grep -o '[a-z_]*\.c$' "$dir/loops" | sort -u >"$dir/members"
echo "files that need each other:"
while read -r user definer symbol; do
	if grep -qx "$user" "$dir/members" && grep -qx "$definer" "$dir/members"; then
		echo "  $user uses $symbol of $definer"
	fi
done <"$dir/uses"
exit 1
