#!/bin/sh
# The export marks in the public headers, the symbols of the built library, and nothing else:
# one list. Usage: exports.sh INCLUDE_DIR LIBKV
set -eu
# The first name before a parenthesis after each mark is the call itself.
marked=$(cat "$1"/orbitkv/*.h | tr '\n\t' '  ' | grep -o 'OKV_EXPORT [^(;]*(' |
	sed 's/ *($//; s/.*[ *]//' | grep '^okv_' | sort -u)
exported=$(nm -D --defined-only "$2" | awk '$2 == "T" || $2 == "D" || $2 == "B" { print $3 }' |
	sed 's/@.*//' | sort -u)
if [ "$marked" != "$exported" ]; then
	echo "marked in headers (-) and exported by the library (+) differ:"
	a=$(mktemp) b=$(mktemp)
	trap 'rm -f "$a" "$b"' EXIT
	echo "$marked" >"$a"
	echo "$exported" >"$b"
	diff -u "$a" "$b" || true
	exit 1
fi
echo "$(echo "$marked" | wc -l) exported calls, all marked"
