#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# orbitkv-bench measures beside neighbours, checks the bytes, and says what it measured.
# usage: bench_neighbours.sh ORBITKV_BENCH
set -u

bench=$1
failed=0
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

"$bench" --quick --case neighbours --json >"$tmp/results" 2>"$tmp/log" || {
	echo "FAILED: orbitkv-bench: $(cat "$tmp/log")"
	exit 1
}

# Is this in the results so many times? Usage: holds COUNT PATTERN
holds() {
	found=$(grep -o -e "$2" "$tmp/results" | wc -l)
	if [ "$found" -ne "$1" ]; then
		echo "FAILED: $found times '$2', not $1"
		failed=1
	fi
}

holds 2 '"beside": "nobody'
holds 1 '"beside": "8 that pin and publish 4,096"'
holds 1 '"beside": "one that dies"'
holds 4 '"longest_us": [0-9.]*[1-9]'
holds 1 '"references": [1-9]'
holds 5 '"leases/s": [0-9.]*[1-9]'
exit "$failed"
