#!/bin/sh
# clang-tidy and cppcheck over lib/, examples/ and tools/, the format of every C file, shellcheck over
# every script. Each release of such a tool has findings and a format of its own, so the ones of
# Debian 12 are used: another release, or none, is skipped with a line; all of them skipped: 77.
# Usage: static.sh ROOT BUILD_DIR
set -eu
build=$(cd "$2" && pwd)
cd "$1"
ran=0 failed=0

# Is this release of the tool here? Usage: have TOOL VERSION
have() {
	version=$("$1" --version 2>/dev/null | grep -o '[0-9][0-9.]*' | head -n 1) || true
	case $version in
	"$2" | "$2".*)
		ran=$((ran + 1))
		echo "== $1"
		;;
	'')
		echo "== $1: skipped, not installed"
		return 1
		;;
	*)
		echo "== $1: skipped, is version $version, not $2"
		return 1
		;;
	esac
}

# The folders of a list that are there.
present() {
	for folder; do
		[ ! -d "$folder" ] || echo "$folder"
	done
}

# shellcheck disable=SC2046 # words
tree() {
	find $(present lib include examples tools kernels test) "$@"
}

# shellcheck disable=SC2046 # words
tidy() {
	log=$(mktemp)
	find $(present lib examples tools) -name '*.c' | sort | while read -r file; do
		! grep -qF "/$file\"" "$build/compile_commands.json" || echo "$file"
	done | xargs -r -P2 -n2 clang-tidy -p "$build" --quiet >"$log" 2>&1 || failed=1
	[ "$failed" = 0 ] || grep -v ' warnings\{0,1\} generated\.$' "$log"
	rm -f "$log"
}

if [ ! -f "$build/compile_commands.json" ]; then
	echo "$build: no compile_commands.json"
	exit 1
fi
if have clang-tidy 14; then
	tidy
fi
if have cppcheck 2.10; then
	# shellcheck disable=SC2046 # words
	cppcheck --quiet -j2 --enable=warning,performance,portability --error-exitcode=1 \
		--suppressions-list=test/lint/cppcheck.txt --inline-suppr --library=posix,bsd \
		-D_GNU_SOURCE -I lib -I include -I "$build" $(present lib examples tools) || failed=1
fi
if have clang-format 14; then
	tree '(' -name '*.[ch]' -o -name '*.cu' ')' -exec clang-format --dry-run -Werror {} + || failed=1
fi
if have shellcheck 0.9; then
	tree -name '*.sh' -exec shellcheck {} + || failed=1
	[ ! -f .ci/run ] || shellcheck .ci/run || failed=1
fi
[ "$ran" -gt 0 ] || exit 77
exit "$failed"
