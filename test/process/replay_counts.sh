#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Hit counts of the public conversation trace against its known facts, every byte checked.
# usage: replay_counts.sh [path of orbitkv-replay]
# Looks for the trace in $OKV_SHARED/data, else in ../shared/data beside the source tree.
set -u

here=$(cd "$(dirname "$0")" && pwd)
replay=${1:-$here/../../build/orbitkv-replay}
data=${OKV_SHARED:-$here/../../../shared}/data
trace=$data/mooncake_conversation_trace.jsonl

if [ ! -r "$trace" ]; then
	echo "skipped: no trace at $trace"
	exit 77
fi
if [ ! -x "$replay" ]; then
	echo "skipped: no orbitkv-replay at $replay"
	exit 77
fi

failed=0

# The value of a member of the one JSON object that orbitkv-replay prints.
member() {
	printf '%s\n' "$output" | sed -n "s/^ *\"$1\": *\([^,]*\),*\$/\1/p"
}

expect() {
	found=$(member "$2")
	if [ "$found" != "$3" ]; then
		echo "FAILED: $1: $2 is ${found:-missing}, not $3"
		failed=1
	fi
}

run() {
	output=$("$replay" --trace "$trace" --json "$@")
	status=$?
	if [ "$status" -ne 0 ]; then
		echo "FAILED: orbitkv-replay $* ended with status $status"
		failed=1
	fi
}

# Room for all 38,788 distinct blocks: hits are exactly the leading blocks already seen.
for engines in 1 4; do
	run --requests 2000 --blocks 40000 --engines "$engines"
	what="2,000 requests, $engines engines"
	expect "$what" requests 2000
	expect "$what" blocks 54559
	expect "$what" hit_blocks 15771
	expect "$what" evictions 0
	expect "$what" mismatched_bytes 0
	expect "$what" restored_bytes $((15771 * 16384))
	expect "$what" published_bytes $((38788 * 16384))
done

# Too small: eviction decides. LRU gives 0.211 here, S3-FIFO 0.202.
run --blocks 10000
what="whole trace, 10,000 blocks"
expect "$what" requests 12031
expect "$what" blocks 288500
expect "$what" capacity_blocks 10000
expect "$what" mismatched_bytes 0
ratio=$(member hit_ratio)
if ! awk -v r="${ratio:-0}" 'BEGIN { exit !(r >= 0.20 && r <= 0.22) }'; then
	echo "FAILED: $what: hit_ratio is ${ratio:-missing}, not 0.20 to 0.22"
	failed=1
fi

[ "$failed" -eq 0 ] && echo "counts agree, whole trace at 10,000 blocks: hit ratio $ratio"
exit "$failed"
