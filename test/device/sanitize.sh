#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The GPU suite under compute-sanitizer, test by test, many at a time: a line for each, then what
# went wrong. Usage: sanitize.sh BUILD [TOOL:PROGRAM...]
# JOBS (default: the CPUs, at most 12) run at a time, LIMIT (300) seconds each. test_gpu_process is
# not among the programs, as its child is killed, nor test_gpu_two, which asks for two GPUs.
# Ends with 0 when every test ran and nothing was found.
set -u
here=$(cd "$(dirname "$0")" && pwd)

# Usage: sanitize.sh --one FOLDER BUILD TOOL PROGRAM TEST
one() {
	folder=$1 build=$2 tool=$3 program=$4 name=$5
	file=$folder/$tool.$program.$name
	start=$(date +%s)
	# The library asks about pointers and streams and expects refusals: no errors of the memory.
	api=
	[ "$tool" = memcheck ] && api='--report-api-errors no'
	# Streams that are held back keep the GPU's queues from all others, and the tool has its own.
	# More of them for all programs would triple the time that contexts take.
	queues=8
	[ "$program" != gpu_queue ] || queues=16
	# Eager, as gpu_find() has it: a kernel that is loaded late may wait for a stream that a test
	# holds back.
	# shellcheck disable=SC2086 # words
	CUDA_DEVICE_MAX_CONNECTIONS=$queues CUDA_MODULE_LOADING=EAGER KV_ONLY=$name CK_FORK=no \
		timeout -k 5 "${LIMIT:-300}" compute-sanitizer --tool "$tool" --error-exitcode 99 $api \
		"$build/test/device/test_$program" >"$file.log" 2>&1
	rc=$?
	verdict=good
	[ "$rc" = 0 ] || verdict=failed
	# A name that selects nothing passes.
	grep -q 'Checks: [1-9]' "$file.log" || verdict=failed
	echo "$tool $program $name: $verdict, exit $rc, $(($(date +%s) - start)) s, $(
		grep -h SUMMARY "$file.log" | tr -s '= ' ' ' | sort | uniq -c | tr '\n' ';')"
	echo "$tool $program $name" >"$file.$verdict"
}

if [ "${1-}" = --one ]; then
	shift
	one "$@"
	exit 0
fi

build=$(cd "$1" && pwd) || exit 2
shift
if [ $# = 0 ]; then
	for program in cuda_kernel cuda_layers cuda_dma cuda_memory gpu_caller gpu_events gpu_order \
		gpu_pieces gpu_queue gpu_roundtrip; do
		set -- "$@" "memcheck:$program"
	done
	for program in cuda_kernel cuda_layers; do
		set -- "$@" "racecheck:$program" "synccheck:$program"
	done
fi
command -v compute-sanitizer >/dev/null || {
	echo "no compute-sanitizer on this machine"
	exit 1
}
ORBITKV_MANAGER=$build/orbitkv-manager OKV_SOURCE_ROOT=$(cd "$here/../.." && pwd)
export ORBITKV_MANAGER OKV_SOURCE_ROOT
jobs=$(nproc)
[ "$jobs" -le 12 ] || jobs=12
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for pair; do
	source=$here/test_${pair#*:}.c
	grep -q '^START_TEST(' "$source" || {
		echo "no tests in $source"
		exit 2
	}
	sed -n "s|^START_TEST(\(.*\))$|$folder $build ${pair%%:*} ${pair#*:} \1|p" "$source"
done >"$folder/list"
xargs -r -P "${JOBS:-$jobs}" -L 1 sh "$0" --one <"$folder/list"
for file in "$folder"/*.failed; do
	[ -f "$file" ] || continue
	echo "== $(cat "$file")"
	tail -15 "${file%.failed}.log"
done
count() {
	find "$folder" -name "*.$1" | wc -l
}
all=$(wc -l <"$folder/list") good=$(count good)
echo "sanitizers: $all runs, $good good, $(count failed) failed"
[ "$all" != 0 ] && [ "$good" = "$all" ]
