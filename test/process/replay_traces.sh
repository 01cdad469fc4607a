#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Which traces orbitkv-replay takes, and what it says of others.
# usage: replay_traces.sh ORBITKV_REPLAY
set -u

examples=$(cd "$(dirname "$0")/../../examples" && pwd)
replay=$(realpath "$1")
failed=0
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1

# Is a trace refused, in these words, that start with the file? Usage: refuses WORDS TRACE
refuses() {
	printf '%b' "$2" >trace
	said=$("$replay" --trace trace --memory 16M 2>&1)
	status=$?
	if [ "$status" -ne 2 ]; then
		echo "FAILED: '$2': status $status, not 2"
		failed=1
	fi
	case $said in
	"orbitkv-replay: trace$1"*) ;;
	*)
		echo "FAILED: '$2': says '$said', not 'trace$1'"
		failed=1
		;;
	esac
}

# Does a trace have so many blocks and hits? Usage: replays BLOCKS HITS TRACE
replays() {
	printf '%b' "$3" >trace
	said=$("$replay" --trace trace --memory 16M --json 2>&1)
	for wanted in "\"blocks\": $1," "\"hit_blocks\": $2," '"mismatched_bytes": 0'; do
		case $said in
		*"$wanted"*) ;;
		*)
			echo "FAILED: '$3': not $wanted: $said"
			failed=1
			;;
		esac
	done
}

most=18446744073709551615
range="not a whole number from 0 to $most"

# A cache that was asked for the same block at two places would have to be wrong about one.
refuses ':2: hash_ids[3] is 2, as hash_ids[1]: ' '{"hash_ids": [1]}\n{"hash_ids": [1, 2, 3, 2]}\n'
refuses ":1: hash_ids[1] is $most, as hash_ids[0]: " "{\"hash_ids\": [$most, $most]}\n"

refuses ":1: hash_ids[1] is 18446744073709551616, $range" '{"hash_ids": [1, 18446744073709551616]}\n'
refuses ":1: hash_ids[0] is -1, $range" '{"hash_ids": [-1]}\n'
refuses ":1: hash_ids[0] is 1.5, $range" '{"hash_ids": [1.5 ]}\n'
refuses ":1: hash_ids[2] is \"3\", $range" '{"hash_ids": [1, 2, "3"]}\n'
refuses ":1: hash_ids[0] is [1, $range" '{"hash_ids": [[1]]}\n'

list='"hash_ids" is not a list of at least one number'
refuses ":1: $list" '{"hash_ids": []}\n'
refuses ":1: $list" '{"hash_ids": 1}\n'
refuses ":1: $list" '{"ids": [1], "in": {"hash_ids": [1]}, "is": "hash_ids"}\n'
refuses ":1: $list" '[1, 2]\n'

# Of what is no JSON: line, column and reason.
refuses ":1:19: ']' expected near '}'" '{"hash_ids": [1, 2}\n'
refuses ":3:8: " '{"hash_ids": [1]}\n\nnonsense\n'
refuses ":1:11: " '{"hash_ids"\r\n'
refuses ': has no request' '\n \n'
mkdir folder
said=$("$replay" --trace folder 2>&1)
[ "$said" = 'orbitkv-replay: folder: Is a directory' ] || {
	echo "FAILED: a folder: $said"
	failed=1
}

# Ids of 64 bits, of which each bit counts.
all="0, 67108863, 67108864, 9223372036854775807, 9223372036854775808, $most"
replays 12 6 "{\"hash_ids\": [$all]}\n{\"hash_ids\":[$all]}\n"
replays 4 0 '{"hash_ids": [5]}\n{"hash_ids": [67108869]}\n{"hash_ids": [9223372036854775813]}\n{"hash_ids": [4294967301]}\n'
replays 3 1 '{"a": "\\"hash_ids\\": [9, 9]", "b": {"hash_ids": [7, 7]}, "hash_ids": [ 1 ,2]}\r\n{"hash_ids":[1]}'

# The sample is what its script writes. What was named before is found: no request leaves a gap.
"$examples/make_trace.sh" | cmp - "$examples/sample_trace.jsonl" || failed=1
counts=$(tr -c '0-9\n' ' ' <"$examples/sample_trace.jsonl" |
	awk '{ for (i = 1; i <= NF; i++) { all++; hits += seen[$i]++ > 0 } } END { print all, hits }')
# shellcheck disable=SC2086 # two words
replays $counts "$(cat "$examples/sample_trace.jsonl")"

[ "$failed" -eq 0 ] && echo "traces are read, or refused by line and reason"
exit "$failed"
