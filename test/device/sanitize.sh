#!/bin/sh
# The GPU suite under compute-sanitizer, test by test, many at a time: a line for each, then what
# went wrong. Usage: sanitize.sh BUILD [TOOL:PROGRAM...]
# JOBS (default: the CPUs, at most 12) run at a time, LIMIT (300) seconds each. test_gpu_process is
# not among the programs, as its child is killed, nor test_gpu_two, which asks for two GPUs.
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
	# Some tests hold a stream back, and a tool may wait for that when a kernel is loaded late.
	for loading in LAZY EAGER; do
		# shellcheck disable=SC2086 # words
		CUDA_MODULE_LOADING=$loading KV_ONLY=$name CK_FORK=no timeout -k 5 "${LIMIT:-300}" \
			compute-sanitizer --tool "$tool" --error-exitcode 99 $api \
			"$build/test/device/test_$program" >"$file.log" 2>&1
		rc=$?
		[ "$rc" = 124 ] || break
	done
	echo "$tool $program $name: exit $rc, $(($(date +%s) - start)) s, $loading, $(
		grep -h SUMMARY "$file.log" | tr -s '= ' ' ' | sort | uniq -c | tr '\n' ';')"
	case $rc in 0 | 77) ;; *) echo "$tool $program $name" >"$file.failed" ;; esac
}

if [ "${1-}" = --one ]; then
	shift
	one "$@"
	exit 0
fi

build=$(cd "$1" && pwd) || exit 2
shift
if [ $# = 0 ]; then
	for program in cuda_kernel cuda_dma cuda_memory gpu_caller gpu_events gpu_order gpu_pieces \
		gpu_queue gpu_roundtrip; do
		set -- "$@" "memcheck:$program"
	done
	set -- "$@" racecheck:cuda_kernel synccheck:cuda_kernel
fi
command -v compute-sanitizer >/dev/null || {
	echo "no compute-sanitizer on this machine"
	exit 1
}
ORBITKV_MANAGER=$build/lib/orbitkv-manager OKV_SOURCE_ROOT=$(cd "$here/../.." && pwd)
export ORBITKV_MANAGER OKV_SOURCE_ROOT
jobs=$(nproc)
[ "$jobs" -le 12 ] || jobs=12
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for pair; do
	sed -n 's/^START_TEST(\(.*\))$/\1/p' "$here/test_${pair#*:}.c" |
		sed "s|^|$folder $build ${pair%%:*} ${pair#*:} |"
done | xargs -P "${JOBS:-$jobs}" -L 1 sh "$0" --one
failed=0
for file in "$folder"/*.failed; do
	[ -f "$file" ] || continue
	failed=$((failed + 1))
	echo "== $(cat "$file")"
	tail -15 "${file%.failed}.log"
done
echo "sanitizers: $(find "$folder" -name '*.log' | wc -l) runs, $failed failed"
[ "$failed" = 0 ]
