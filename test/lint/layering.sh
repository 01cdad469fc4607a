#!/bin/sh
# Every file of lib/ includes its own folder or a lower rank only; foreign headers stay in the
# folders that own them; basenames are unique; files say who runs them. Usage: layering.sh ROOT
set -eu
cd "$1"
fail=0
tmp=$(mktemp)
trap 'rm -f "$tmp"' EXIT
complain() {
	echo "$*"
	fail=1
}

rank() {
	case $1 in
	base | kernels) echo 0 ;;
	wire | device | trace) echo 1 ;;
	arena | plan | grant) echo 2 ;;
	index | exec | tier) echo 3 ;;
	engine | manager) echo 4 ;;
	*) echo 9 ;;
	esac
}

for file in lib/*/*.c lib/*/*.h; do
	own=$(basename "$(dirname "$file")")
	own_rank=$(rank "$own")
	[ "$own_rank" != 9 ] || complain "$file: folder has no rank"
	sed -n 's/^#include "\([a-z_]*\)\/.*/\1/p' "$file" | sort -u >"$tmp"
	while read -r other; do
		[ "$other" = "$own" ] && continue
		other_rank=$(rank "$other")
		[ "$other_rank" -lt "$own_rank" ] ||
			complain "$file (rank $own_rank) includes $other (rank $other_rank)"
	done <"$tmp"
	sed -n 1p "$file" | grep -q '^/\*.*\[[EMB]\]' ||
		{ sed -n 2p "$file" | grep -q '\[[EMB]\]' || complain "$file: first line does not say who runs it"; }
	[ "$own" = device ] || ! grep -q '#include <cuda' "$file" || complain "$file: CUDA header outside device"
	[ "$own" = arena ] || ! grep -q '#include <numa' "$file" || complain "$file: libnuma outside arena"
	[ "$own" = index ] || ! grep -q '#include <urcu' "$file" || complain "$file: liburcu outside index"
	! grep -q '#include <\(common\|utils\)' "$file" || complain "$file: catch-all header"
done

dup=$(find lib examples kernels test include -name '*.[ch]' | sed 's/.*\///' | sort | uniq -d)
[ -z "$dup" ] || complain "basenames are not unique: $dup"

for file in examples/*.c examples/*.h; do
	[ -e "$file" ] || continue
	! grep -q '#include "\(base\|wire\|device\|arena\|plan\|grant\|index\|exec\|engine\|manager\)/' "$file" ||
		complain "$file: an example uses more than the public headers"
done
[ "$fail" = 0 ] && echo "layering holds"
exit "$fail"
