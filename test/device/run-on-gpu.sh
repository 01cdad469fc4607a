#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Build here and prove on this machine's GPU what test/run.sh cannot; the summary comes last.
#   test/device/run-on-gpu.sh               the gpu suite, then the unit and scenario suites
#   test/device/run-on-gpu.sh --sanitizer   the gpu suite again under compute-sanitizer
#   test/device/run-on-gpu.sh --gpu-only    the gpu suite alone
# BUILD (default build-gpu) is the build folder, MESON_ARGS are given to meson setup.
# Ends with 77 when there is no GPU.
set -u
cd "$(dirname "$0")/../.." || exit 1
unset KV_ONLY

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
	sh test/device/sanitize.sh "$build" >"$output" 2>&1 || failed=1
	cat "$output"
	say "$(tail -1 "$output")"
fi

[ "$failed" = 0 ] || finish 1
if [ "$gpu_ran" = 0 ]; then
	say "no GPU here: nothing was proven"
	finish 77
fi
finish 0
