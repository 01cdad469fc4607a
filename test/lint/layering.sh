#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every file of lib/ includes its own folder or a lower rank only; foreign headers stay in the
# folders that own them; basenames are unique; files say who runs them. Usage: layering.sh ROOT
set -eu
cd "$1"
fail=0
tmp=$(mktemp)
files=$(mktemp)
trap 'rm -f "$tmp" "$files"' EXIT
complain() {
	echo "$*"
	fail=1
}

rank() {
	case $1 in
	base | kernels) echo 0 ;;
	wire | device) echo 1 ;;
	arena | schema | grant) echo 2 ;;
	plan) echo 3 ;;
	index | exec | tier) echo 4 ;;
	engine | manager) echo 5 ;;
	*) echo 9 ;;
	esac
}

find lib -name '*.[ch]' | sort >"$files"
while read -r file; do
	own=$(echo "$file" | cut -d / -f 2)
	own_rank=$(rank "$own")
	[ "$own_rank" != 9 ] || complain "$file: folder has no rank"
	sed -n 's/^#include "\([a-z_]*\)\/.*/\1/p' "$file" | sort -u >"$tmp"
	while read -r other; do
		[ "$other" = "$own" ] && continue
		other_rank=$(rank "$other")
		[ "$other_rank" -lt "$own_rank" ] ||
			complain "$file (rank $own_rank) includes $other (rank $other_rank)"
	done <"$tmp"
	sed -n 1,4p "$file" | grep -q '\[[EMB]\]' ||
		complain "$file: the first four lines do not say who runs it"
	[ "$own" = device ] || ! grep -q '#include <cuda' "$file" || complain "$file: CUDA header outside device"
	[ "$own" = arena ] || ! grep -q '#include <numa' "$file" || complain "$file: libnuma outside arena"
	[ "$own" = index ] || ! grep -q '#include <urcu' "$file" || complain "$file: liburcu outside index"
	! grep -q '#include <\(common\|utils\)' "$file" || complain "$file: catch-all header"
done <"$files"

dup=$(find lib examples tools kernels test include -name '*.[ch]' | sed 's/.*\///' | sort | uniq -d)
[ -z "$dup" ] || complain "basenames are not unique: $dup"

find examples tools -name '*.[ch]' ! -path 'tools/bench/measure/*' | sort >"$files"
while read -r file; do
	! grep -q '#include "\(base\|wire\|device\|schema\|arena\|plan\|grant\|index\|exec\|engine\|manager\)/' "$file" ||
		complain "$file: uses more than the public headers"
done <"$files"
[ "$fail" = 0 ] && echo "layering holds"
exit "$fail"
