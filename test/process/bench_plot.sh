#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What orbitkv-bench --json says of fragments becomes a picture.
# usage: bench_plot.sh ORBITKV_BENCH BENCH_PLOT_PY
set -u

bench=$1 plot=$2
failed=0
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

command -v python3 >/dev/null || {
	echo "skipped: no python3"
	exit 77
}

# Does the picture hold this pattern so many times? Usage: holds COUNT PATTERN
holds() {
	found=$(grep -c -e "$2" "$tmp/picture.svg")
	if [ "$found" -ne "$1" ]; then
		echo "FAILED: $found times '$2', not $1"
		failed=1
	fi
}

"$bench" --quick --case fragments/4096 --case fragments/8192 --json >"$tmp/results" 2>"$tmp/log" || {
	echo "FAILED: orbitkv-bench: $(cat "$tmp/log")"
	exit 1
}
python3 "$plot" "$tmp/results" >"$tmp/picture.svg" || exit 1
holds 1 '^<svg xmlns="http://www.w3.org/2000/svg" width="860" height="520"'
holds 1 '^</svg>$'
holds 1 '>4 KiB</text>$'
# Restore, publish, memcpy of the rows and a loop of copies, two fragments each.
holds 4 '^<polyline fill="none" stroke="#.*points="[0-9.]*,[0-9.]* [0-9.]*,[0-9.]*"/>$'
holds 8 '^<circle '
holds 1 '>publish</text>$'

# A row of a GPU with its batched call: the target, and where 0.9 of 1.1 stands.
cat >"$tmp/gpu" <<'END'
{"results": [{"case": "fragments", "direction": "restore", "beside": "nothing",
  "figures": {"fragment_bytes": 2048.0, "ratio": 0.9, "batch_ratio": 0.5}},
  {"case": "latency", "direction": "restore", "figures": {"us": 1.0}}]}
END
python3 "$plot" <"$tmp/gpu" >"$tmp/picture.svg" || exit 1
holds 1 '>target</text>$'
holds 1 '^<circle cx="171.8" cy="129.1" r="3" fill="#1f6fb4"/>$'
holds 2 '^<circle '

for results in '' '[]' '{"results": []}'; do
	if printf '%s' "$results" | python3 "$plot" >"$tmp/picture.svg" 2>"$tmp/log" ||
		! grep -q '^bench_plot.py: -: ' "$tmp/log" || [ -s "$tmp/picture.svg" ]; then
		echo "FAILED: a picture of '$results': $(cat "$tmp/log")"
		failed=1
	fi
done

[ "$failed" -eq 0 ] && echo "the picture shows what was measured"
exit "$failed"
