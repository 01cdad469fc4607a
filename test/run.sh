#!/bin/sh
# Build and run every test that needs no GPU. One command on a fresh Debian >= 12 or
# Ubuntu >= 24.04 machine: it installs what is missing, or says what to install.
#   test/run.sh              the whole suite
#   test/run.sh --sanitize   everything again under ASan + UBSan, both devices under TSan (15 minutes)
set -eu
cd "$(dirname "$0")/.."

sanitize=0
case "${1-}" in
'') ;;
--sanitize) sanitize=1 ;;
-h | --help)
	echo "usage: test/run.sh [--sanitize]"
	exit 0
	;;
*)
	echo "usage: test/run.sh [--sanitize]" >&2
	exit 2
	;;
esac

test/tools/install-needed.sh test

passed=0 failed=0 skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Run one build's tests and add its counts up. Usage: run_build DIR NAME SETUP_ARGS... -- TEST_ARGS...
run_build() {
	dir=$1 name=$2
	shift 2
	setup=
	while [ "$1" != -- ]; do
		setup="$setup $1"
		shift
	done
	shift
	# A folder that was set up before the tests' packages were there has no tests: set up again.
	again=
	[ ! -f "$dir/build.ninja" ] || again=--reconfigure
	# shellcheck disable=SC2086 # words
	meson setup $again "$dir" -Dtests=enabled $setup >"$log" 2>&1 || {
		cat "$log"
		exit 1
	}
	echo "== $name: building in $dir"
	ninja -C "$dir" >"$log" 2>&1 || {
		tail -40 "$log"
		exit 1
	}
	echo "== $name: testing"
	rm -f "$dir/meson-logs/testlog.json"
	meson test -C "$dir" --no-rebuild --print-errorlogs --no-suite gpu "$@" || true
	results=$(ls "$dir"/meson-logs/testlog*.json)
	p=$(grep -c '"result": "OK"' "$results" || true)
	s=$(grep -c '"result": "SKIP"' "$results" || true)
	all=$(wc -l <"$results")
	passed=$((passed + p))
	skipped=$((skipped + s))
	failed=$((failed + all - p - s))
}

if [ "$sanitize" = 0 ]; then
	run_build build 'all tests' --
else
	export ASAN_OPTIONS=abort_on_error=0:detect_leaks=1:allocator_may_return_null=1
	export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
	export CK_FORK=no
	run_build build-asan 'ASan + UBSan' -Db_sanitize=address,undefined -Db_lundef=false \
		-- --no-suite lint --no-suite model --no-suite install --timeout-multiplier 4
	export TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1 suppressions=$PWD/test/tools/tsan.supp"
	run_build build-tsan 'TSan' -Db_sanitize=thread -Db_lundef=false \
		-- --suite unit --suite scenario --suite standin --timeout-multiplier 6
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
