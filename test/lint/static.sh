#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# clang-tidy and cppcheck over lib/, examples/ and tools/, the format of every C file, shellcheck over
# every script, codespell over every text. Each release of such a tool has findings and a format of its own, so the ones of
# Debian 12 are used: another release, or none, is skipped with a line; all of them skipped: 77.
# Usage: static.sh ROOT BUILD_DIR [FILE...]
# With files (paths from ROOT): of what is checked, those only.
set -eu
build=$(cd "$2" && pwd)
cd "$1"
shift 2
ran=0 failed=0
files=$(mktemp)
some=$(mktemp)
log=$(mktemp)
trap 'rm -f "$files" "$some" "$log"' EXIT

# Is this release of the tool here? Usage: have TOOL VERSION
have() {
	version=$("$1" --version 2>/dev/null | grep -o '[0-9][0-9.]*' | head -n 1) || true
	case $version in
	"$2" | "$2".*)
		ran=$((ran + 1))
		echo "== $1"
		;;
	'')
		echo "skipped: $1: not installed"
		return 1
		;;
	*)
		echo "skipped: $1: is version $version, not $2"
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

# Put the files whose paths match into $some; false when there is none. Usage: pick EXPRESSION
pick() {
	grep -E "$1" "$files" >"$some"
}

if [ ! -f "$build/compile_commands.json" ]; then
	echo "$build: no compile_commands.json"
	exit 1
fi
if [ $# -gt 0 ]; then
	printf '%s\n' "$@" | sed 's/^\.\///' >"$files"
else
	# shellcheck disable=SC2046 # words
	find $(present lib include examples tools kernels pkgconfig python test doc .ci) ./*.* -type f |
		sed 's/^\.\///' | sort >"$files"
fi

if have clang-tidy 14 && pick '^(lib|examples|tools)/.*\.c$'; then
	while read -r file; do
		! grep -qF "/$file\"" "$build/compile_commands.json" || echo "$file"
	done <"$some" | xargs -r -P2 -n2 clang-tidy -p "$build" --quiet >"$log" 2>&1 || {
		failed=1
		grep -v ' warnings\{0,1\} generated\.$' "$log"
	}
fi
if have cppcheck 2.10 && pick '^(lib|examples|tools)/.*\.c$'; then
	cppcheck --quiet -j2 --enable=warning,performance,portability --error-exitcode=1 \
		--suppressions-list=test/lint/cppcheck.txt --inline-suppr --library=posix,bsd \
		-D_GNU_SOURCE -I lib -I include -I "$build" --file-list="$some" || failed=1
fi
if have clang-format 14 && pick '^(lib|include|examples|tools|kernels|python|test)/.*\.([ch]|cu)$'; then
	xargs clang-format --dry-run -Werror <"$some" || failed=1
fi
if have shellcheck 0.9 && pick '^((lib|include|examples|tools|kernels|test)/.*\.sh|\.ci/run)$'; then
	xargs shellcheck <"$some" || failed=1
fi
if have codespell 2.2.2 && pick '(\.([ch]|cu|in|md|pml|py|sh|txt)|^\.ci/run|meson\.build)$'; then
	xargs codespell --ignore-words=test/lint/spelling.txt <"$some" || failed=1
fi
[ "$ran" -gt 0 ] || exit 77
exit "$failed"
