#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the programs say to options that they cannot take, and the sizes that they take.
# usage: tool_options.sh ORBITKV_MANAGER ORBITKV_REPLAY ORBITKV_BENCH
set -u

manager=$1 replay=$2 bench=$3
failed=0
tmp=$(mktemp -d)
child=
trap 'rm -rf "$tmp"; [ -z "$child" ] || kill "$child"' EXIT
export ORBITKV_SOCKET="$tmp/none.sock"

# Does the program refuse this as wrong use, in these words? Usage: refuses WORDS PROGRAM OPTIONS...
refuses() {
	words=$1
	shift
	said=$("$@" 2>&1)
	status=$?
	if [ "$status" -ne 2 ]; then
		echo "FAILED: $*: status $status, not 2"
		failed=1
	fi
	case $said in
	*"$words"*) ;;
	*)
		echo "FAILED: $*: says '$said', not '$words'"
		failed=1
		;;
	esac
}

# Options name themselves, what they were given, and what they take.
refuses "orbitkv-bench: --runs '0': expected a whole number from 1 to 1048576" "$bench" --runs 0
refuses "orbitkv-bench: --max-bytes '2T': expected a size from 1 byte to 1T" "$bench" --max-bytes 2T
refuses "orbitkv-bench: --device 'gpu': expected host or cuda" "$bench" --device gpu
refuses "orbitkv-replay: --engines '65': expected a whole number from 1 to 64" "$replay" --engines 65
refuses "orbitkv-replay: --requests '1x': expected a whole number" "$replay" --requests 1x
refuses "orbitkv-replay: --device 'gpu': expected host or cuda" "$replay" --device gpu

# What getopt_long() finds is told in the same words.
for program in "$manager" "$replay" "$bench"; do
	name=$(basename "$program")
	refuses "$name: --nosuch: there is no such option, or several; see --help" "$program" --nosuch
	refuses "$name: --nosuch=1: there is no such option" "$program" --nosuch=1
	refuses "$name: -x: there is no such option; see --help" "$program" -x
	refuses "$name: --help: expected no value; see --help" "$program" --help=1
	said=$("$program" --version)
	case $said in
	"$name "[0-9]*.[0-9]*.[0-9]*) ;;
	*)
		echo "FAILED: $name --version: says '$said'"
		failed=1
		;;
	esac
done
refuses "orbitkv-manager: --memory: expected a value; see --help" "$manager" --memory
refuses "orbitkv-replay: --trace: expected a value; see --help" "$replay" --trace
refuses "orbitkv-replay: --m=1: there is no such option, or several" "$replay" --m=1
refuses "orbitkv-bench: --runs: expected a value; see --help" "$bench" --runs

# A case that is none measures nothing, and would end well.
for name in nosuch geometry/nosuch geometry/ geometryx fragments/513 fragments/2097152 \
	first-layer/tiny latency/tiny; do
	refuses "orbitkv-bench: --case $name: there is no such case; see --list" \
		"$bench" --quick --case lookups --case "$name"
done
for part in geometry/tiny fragments/512 fragments/1048576 first-layer/qwen3-8b; do
	"$bench" --list | grep -q "^parts of ${part%/*}:.* ${part#*/}\( \|$\)" || {
		echo "FAILED: --list does not name $part"
		failed=1
	}
done

# What is no size, or could mean two.
for size in 0 -1 1.5 1. .5G 4GB 3i 3Ki 12x 1.1234567G 99999999999999999999; do
	refuses "orbitkv-replay: --memory '$size': expected a size" "$replay" --memory "$size"
	refuses "orbitkv-bench: --max-memory '$size': expected a size" "$bench" --max-memory "$size"
	refuses "orbitkv-manager: --memory '$size': expected a size" "$manager" --memory "$size"
done

# A file of models: what is wrong with it, and where.
printf '{"hash_ids": [1, 2, 3]}\n' >"$tmp/trace"
misread() {
	printf '%s' "$2" >"$tmp/models"
	refuses "orbitkv-bench: $tmp/models$1" "$bench" --models "$tmp/models" --list
	refuses "orbitkv-replay: $tmp/models$1" "$replay" --trace "$tmp/trace" --models "$tmp/models" \
		--model a
}
misread ':2:4: ' '{"models": [
  {]}'
misread ': "models" is not a list of at least one' '{"models": {}}'
misread ': model 1 "": "name" is no string' '{"models": [
  {"name": "a", "layers": 1, "segments": 2, "segment_bytes_per_token": 8, "block_tokens": 16},
  {"layers": 1}]}'
misread ': model 0 "a": "block_tokens" is not 1 to 524288' \
	'{"models": [{"name": "a", "layers": 1, "segments": 2, "segment_bytes_per_token": 8}]}'
refuses 'orbitkv-replay: unable to open nofile: No such file' \
	"$replay" --trace "$tmp/trace" --models nofile --model a
refuses 'orbitkv-replay: no model "a" is built in; there are: qwen3-8b ' \
	"$replay" --trace "$tmp/trace" --model a

printf '{"models": [{"name": "a", "layers": 1, "segments": 2, %s}]}' \
	'"segment_bytes_per_token": 8, "block_tokens": 16' >"$tmp/models"
"$bench" --quick --models "$tmp/models" --case first-layer |
	grep -q 'not measured: none of its models is there' || {
	echo "FAILED: first-layer of other models says nothing"
	failed=1
}

# Does the Manager serve so many bytes for this size? Usage: serves SIZE BYTES
serves() {
	"$manager" --socket "$tmp/manager.sock" --memory "$1" --shard "$1" >"$tmp/said" 2>"$tmp/log" &
	child=$!
	ready=
	read -r ready <"$tmp/said"
	case $ready in
	ready:*" $2 bytes,"*) ;;
	*)
		echo "FAILED: --memory $1: says '$ready', not $2 bytes: $(cat "$tmp/log")"
		failed=1
		;;
	esac
	kill "$child" 2>/dev/null
	wait "$child"
	child=
}

mkfifo "$tmp/said"
serves 3145728 3145728
serves 3M 3145728
serves 3072k 3145728
serves 1.5m 1572864
serves 1536KiB 1572864
serves 0.0625G 67108864

# A size is cut to whole bytes, and the tool reads it as the Manager does.
blocks=$("$replay" --trace "$tmp/trace" --json --memory 1.5mib |
	sed -n 's/^ *"capacity_blocks": *\([0-9]*\),*$/\1/p')
if [ "$blocks" != 96 ]; then
	echo "FAILED: orbitkv-replay --memory 1.5mib has room for ${blocks:-no} blocks, not 96"
	failed=1
fi

[ "$failed" -eq 0 ] && echo "options are refused by name, sizes are read as people write them"
exit "$failed"
