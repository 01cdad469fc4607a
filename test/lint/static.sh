#!/bin/sh
# clang-tidy and cppcheck over lib/ and examples/, the format of every C file, shellcheck over
# every script. A tool that is missing is skipped with a line; all of them missing: 77.
# Usage: static.sh ROOT BUILD_DIR
set -eu
build=$(cd "$2" && pwd)
cd "$1"
ran=0 failed=0

# Other releases of LLVM format otherwise and have other checks.
llvm() {
	if "$1" --version 2>/dev/null | grep -q 'version 14\.'; then
		ran=$((ran + 1))
		echo "== $1"
	else
		echo "== $1: skipped, not installed or not version 14"
		return 1
	fi
}

other() {
	if command -v "$1" >/dev/null; then
		ran=$((ran + 1))
		echo "== $1"
	else
		echo "== $1: skipped, not installed"
		return 1
	fi
}

tidy() {
	log=$(mktemp)
	find lib examples -name '*.c' | sort | while read -r file; do
		! grep -qF "/$file\"" "$build/compile_commands.json" || echo "$file"
	done | xargs -P2 -n2 clang-tidy -p "$build" --quiet >"$log" 2>&1 || failed=1
	[ "$failed" = 0 ] || grep -v ' warnings generated\.$' "$log"
	rm -f "$log"
}

tree() {
	find lib include examples kernels test "$@"
}

if llvm clang-tidy; then
	tidy
fi
if other cppcheck; then
	cppcheck --quiet -j2 --enable=warning,performance,portability --error-exitcode=1 \
		--suppressions-list=test/lint/cppcheck.txt --inline-suppr --library=posix,bsd \
		-D_GNU_SOURCE -I lib -I include -I "$build" lib examples || failed=1
fi
if llvm clang-format; then
	tree '(' -name '*.[ch]' -o -name '*.cu' ')' -exec clang-format --dry-run -Werror {} + || failed=1
fi
if other shellcheck; then
	tree -name '*.sh' -exec shellcheck {} + || failed=1
	shellcheck .ci/run || failed=1
fi
[ "$ran" -gt 0 ] || exit 77
exit "$failed"
