#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Build and run every test that needs no GPU. One command on a fresh Debian >= 12 or
# Ubuntu >= 24.04 machine: it installs what is missing, or says what to install.
#   test/run.sh              the whole suite
#   test/run.sh --fast       unit, scenario, and lint of what changed: two minutes on a built tree
#   test/run.sh --sanitize   everything again under ASan + UBSan, both devices under TSan (15 minutes)
set -eu
cd "$(dirname "$0")/.."

usage='usage: test/run.sh [--fast | --sanitize]'
lane=full
case "${1-}" in
'') ;;
--fast) lane=fast ;;
--sanitize) lane=sanitize ;;
-h | --help)
	cat <<END
$usage
without an option: build in build/, run every test that needs no GPU
--fast      build what the unit and scenario suites need, run them and the checks of the lint suite
            that need no build of their own; clang-tidy, cppcheck, clang-format and shellcheck see
            the files that differ from where this branch left origin/main, or from HEAD where there
            is no origin/main, and new ones that git does not ignore. Of a changed header the format
            is checked, not the files that include it. Two minutes on two CPUs after a small change
            to a built tree.
--sanitize  everything again under ASan + UBSan, both devices under TSan: 15 minutes
END
	exit 0
	;;
*)
	echo "$usage" >&2
	exit 2
	;;
esac

test/tools/install-needed.sh test

passed=0 failed=0 skipped=0
log=$(mktemp)
notes=$(mktemp)
trap 'rm -f "$log" "$notes"' EXIT

# Usage: set_up DIR SETUP_ARGS...
set_up() {
	dir=$1
	shift
	# A folder that was set up before the tests' packages were there has no tests: set up again.
	again=
	[ ! -f "$dir/build.ninja" ] || again=--reconfigure
	# shellcheck disable=SC2086 # a word or none
	meson setup $again "$dir" -Dtests=enabled "$@" >"$log" 2>&1 || {
		cat "$log"
		exit 1
	}
}

# Run tests of a build, add their counts up and keep what they say they left out.
# Usage: run_tests DIR TEST_ARGS...
run_tests() {
	dir=$1
	shift
	rm -f "$dir"/meson-logs/testlog*
	meson test -C "$dir" --print-errorlogs "$@" || true
	results=$(ls "$dir"/meson-logs/testlog*.json) || {
		echo "no test ran"
		exit 1
	}
	p=$(grep -c '"result": "OK"' "$results" || true)
	s=$(grep -c '"result": "SKIP"' "$results" || true)
	all=$(wc -l <"$results")
	passed=$((passed + p))
	skipped=$((skipped + s))
	failed=$((failed + all - p - s))
	awk '/^test: / { test = $NF } sub(/^skipped: /, "") { print "  " test ": " $0 }' \
		"${results%.json}.txt" >>"$notes"
}

# Run one build's tests. Usage: run_build DIR NAME SETUP_ARGS... -- TEST_ARGS...
run_build() {
	dir=$1 name=$2
	shift 2
	setup=
	while [ "$1" != -- ]; do
		setup="$setup $1"
		shift
	done
	shift
	# shellcheck disable=SC2086 # words
	set_up "$dir" $setup
	echo "== $name: building in $dir"
	ninja -C "$dir" >"$log" 2>&1 || {
		tail -40 "$log"
		exit 1
	}
	echo "== $name: testing"
	run_tests "$dir" --no-rebuild --no-suite gpu "$@"
}

# The files that are not as they were where this branch left origin/main, else as in HEAD.
changed_files() {
	base=$(git merge-base HEAD origin/main 2>/dev/null) || base=HEAD
	git diff --name-only --diff-filter=d "$base"
	git ls-files --others --exclude-standard
}

case $lane in
full) run_build build 'all tests' -- ;;
fast)
	[ -f build/build.ninja ] || set_up build
	echo "== unit, scenario and quick lint tests: building what they need in build, testing"
	run_tests build --suite unit --suite scenario --suite quick
	changed_files >"$log"
	if [ -s "$log" ]; then
		echo "== lint of $(wc -l <"$log") changed files"
		status=0
		# shellcheck disable=SC2046 # words
		test/lint/static.sh . build $(cat "$log") || status=$?
		case $status in
		0) passed=$((passed + 1)) ;;
		77) skipped=$((skipped + 1)) ;;
		*) failed=$((failed + 1)) ;;
		esac
	fi
	;;
sanitize)
	export ASAN_OPTIONS=abort_on_error=0:detect_leaks=1:allocator_may_return_null=1
	export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
	export CK_FORK=no
	run_build build-asan 'ASan + UBSan' -Db_sanitize=address,undefined -Db_lundef=false \
		-- --no-suite lint --no-suite model --no-suite install --no-suite python \
		--no-suite engines --timeout-multiplier 4
	export TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1 suppressions=$PWD/test/tools/tsan.supp"
	run_build build-tsan 'TSan' -Db_sanitize=thread -Db_lundef=false \
		-- --suite unit --suite scenario --suite standin --timeout-multiplier 6
	;;
esac

if [ -s "$notes" ]; then
	echo "left out here:"
	sort -u "$notes"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
