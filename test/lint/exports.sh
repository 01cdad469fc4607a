#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The export marks in the public headers, the symbol map, and what the built library exports: one
# list. Usage: exports.sh INCLUDE_DIR SYMBOL_MAP LIBKV
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# The first name before a parenthesis after each mark is the call itself.
cat "$1"/orbitkv/*.h | tr '\n\t' '  ' | grep -o 'OKV_EXPORT [^(;]*(' |
	sed 's/ *($//; s/.*[ *]//' | grep '^okv_' | sort -u >"$dir/marked"
sed -n 's/^[[:space:]]*\(okv_[a-z_0-9]*\);$/\1/p' "$2" | sort -u >"$dir/mapped"
nm -D --defined-only "$3" | awk '$2 == "T" || $2 == "D" || $2 == "B" { print $3 }' |
	sed 's/@.*//' | sort -u >"$dir/exported"

fail=0
for list in mapped exported; do
	if ! diff -u "$dir/marked" "$dir/$list" >"$dir/diff"; then
		echo "marked in the headers (-) and $list (+) differ:"
		cat "$dir/diff"
		fail=1
	fi
done
[ "$fail" = 0 ] && echo "$(wc -l <"$dir/marked") exported calls, all marked and mapped"
exit "$fail"
