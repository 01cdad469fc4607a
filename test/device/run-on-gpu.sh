#!/bin/sh
# Build here and prove on this machine's GPU what test/run.sh cannot; the summary comes last.
#   test/device/run-on-gpu.sh               the gpu suite, then the unit and scenario suites
#   test/device/run-on-gpu.sh --sanitizer   the gpu suite again under compute-sanitizer
#   test/device/run-on-gpu.sh --gpu-only    the gpu suite alone
# BUILD (default build-gpu) is the build folder, MESON_ARGS are given to meson setup, SANITIZE names
# what compute-sanitizer runs, each a tool and a program, a few of them at a time. test_gpu_process is
# in none: its child is killed.
# Ends with 77 when there is no GPU.
set -u
cd "$(dirname "$0")/../.." || exit 1

sanitizer=0 others=1
for arg; do
	case $arg in
	--sanitizer) sanitizer=1 ;;
	--gpu-only) others=0 ;;
	*)
		echo "usage: $0 [--sanitizer] [--gpu-only]" >&2
		exit 2
		;;
	esac
done

build=${BUILD:-build-gpu}
summary=$(mktemp)
output=$(mktemp)
trap 'rm -f "$summary" "$output"' EXIT
failed=0

say() {
	printf '%s\n' "$*" >>"$summary"
}

finish() {
	echo
	echo "== summary"
	cat "$summary"
	exit "$1"
}

now() {
	date +%s
}

# Run suites of the build and count. Usage: run_suites NAME MESON_TEST_ARGS...
run_suites() {
	name=$1
	shift
	rm -f "$build"/meson-logs/testlog*.json
	start=$(now)
	meson test -C "$build" --no-rebuild --print-errorlogs "$@" || true
	ok=0
	set -- "$build"/meson-logs/testlog*.json
	log=$1
	if [ ! -f "$log" ]; then
		say "$name: did not run"
		failed=1
		return
	fi
	all=$(wc -l <"$log")
	ok=$(grep -c '"result": "OK"' "$log" || true)
	skipped=$(grep -c '"result": "SKIP"' "$log" || true)
	bad=$((all - ok - skipped))
	say "$name: $ok passed, $bad failed, $skipped skipped, $(($(now) - start)) s"
	if [ "$bad" != 0 ]; then
		failed=1
		grep -v -e '"result": "OK"' -e '"result": "SKIP"' "$log" |
			sed -n 's/.*"name": "\([^"]*\)".*"result": "\([^"]*\)".*/  \2: \1/p' >>"$summary"
	fi
}

# One program under one tool; in the background. Usage: sanitize TOOL PROGRAM FILE
sanitize() {
	tool=$1 program=$2 file=$3
	start=$(now)
	# The library asks about pointers and streams and expects refusals: no errors of the memory.
	api=
	[ "$tool" = memcheck ] && api='--report-api-errors no'
	# Eager, as a kernel that is loaded late waits under these tools for all that is queued, and
	# some tests hold a queue back.
	# shellcheck disable=SC2086 # words
	CUDA_MODULE_LOADING=EAGER timeout 400 compute-sanitizer --tool "$tool" \
		--error-exitcode 99 $api "$program" >"$file.log" 2>&1
	rc=$?
	echo "$tool ${program##*/}: exit $rc, $(($(now) - start)) s: $(grep -h SUMMARY "$file.log" |
		tr -s '= ' ' ' | sort | uniq -c | tr '\n' ';')" >"$file.line"
	case $rc in 0 | 77) return ;; esac
	echo "$tool ${program##*/}" >"$file.failed"
}

# SANITIZE, five at a time: more of them and waits for 60 s in the tests may run out.
sanitize_all() {
	at=0
	folder=$(mktemp -d)
	for pair in $SANITIZE; do
		at=$((at + 1))
		sanitize "${pair%%:*}" "$build/test/device/test_${pair#*:}" "$folder/$at" &
		[ $((at % 5)) != 0 ] || wait
	done
	wait
	for file in "$folder"/*.failed; do
		[ -f "$file" ] || continue
		failed=1
		echo "== $(cat "$file")"
		tail -15 "${file%.failed}.log"
	done
	cat "$folder"/*.line >>"$summary"
	rm -rf "$folder"
}

if command -v nvidia-smi >/dev/null; then
	say "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1)"
fi

if [ ! -f "$build/build.ninja" ]; then
	# shellcheck disable=SC2086 # words
	meson setup "$build" ${MESON_ARGS-} >"$output" 2>&1 || {
		cat "$output"
		say "meson setup failed"
		finish 1
	}
	tail -8 "$output"
fi
start=$(now)
# What was built is still run.
ninja -C "$build" -k 0 >"$output" 2>&1 || {
	grep -A 12 -e '^FAILED' -e 'error:' "$output" | head -60
	say "the build failed: $(grep '^FAILED' "$output" | tr '\n' ' ')"
	failed=1
}
warnings=$(grep -c 'warning:' "$output" || true)
grep 'warning:' "$output" || true
say "build: $(($(now) - start)) s, $warnings warnings"

run_suites gpu --suite gpu
gpu_ran=$ok
if [ "$others" = 1 ]; then
	run_suites 'unit and scenario' --suite unit --suite scenario
fi

if [ "$sanitizer" = 1 ] && [ "$gpu_ran" != 0 ]; then
	if command -v compute-sanitizer >/dev/null; then
		OKV_SOURCE_ROOT=$PWD ORBITKV_MANAGER=$PWD/$build/lib/orbitkv-manager CK_FORK=no
		case $build in /*) ORBITKV_MANAGER=$build/lib/orbitkv-manager ;; esac
		export OKV_SOURCE_ROOT ORBITKV_MANAGER CK_FORK
		: "${SANITIZE=memcheck:cuda_kernel memcheck:cuda_dma memcheck:cuda_memory
			memcheck:gpu_caller memcheck:gpu_events racecheck:cuda_kernel
			memcheck:gpu_order memcheck:gpu_pieces memcheck:gpu_queue
			memcheck:gpu_roundtrip synccheck:cuda_kernel}"
		sanitize_all
	else
		say "no compute-sanitizer on this machine"
		failed=1
	fi
fi

[ "$failed" = 0 ] || finish 1
if [ "$gpu_ran" = 0 ]; then
	say "no GPU here: nothing was proven"
	finish 77
fi
finish 0
