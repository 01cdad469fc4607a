#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Install into an empty directory, then use the copy as a stranger would: headers, pkg-config,
# library, program. usage: install.sh BUILD_DIR SOURCE_DIR
set -eu

build=$1 source=$2
here=$(cd "$(dirname "$0")" && pwd)

skip() {
	echo "skipped: $1"
	exit 77
}

fail() {
	echo "FAILED: $1"
	exit 1
}

command -v pkg-config >/dev/null || skip "no pkg-config"
grep -q 'b_sanitize.*[a-z]' "$build/meson-private/cmd_line.txt" && skip "a sanitizer's library"

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT INT TERM
meson install -C "$build" --no-rebuild --quiet --destdir "$root/copy" >"$root/log" 2>&1 ||
	fail "meson install: $(cat "$root/log")"

pc=$(find "$root/copy" -name orbitkv.pc)
[ -f "$pc" ] || fail "no orbitkv.pc"
prefix=$(sed -n 's/^prefix=//p' "$pc")
copy=$root/copy$prefix

# The public headers, all of them, and nothing else.
(cd "$source/include" && find . -name '*.h' | sort) >"$root/wanted"
(cd "$copy/include" && find . -type f | sort) >"$root/found"
diff "$root/wanted" "$root/found" || fail "headers differ from include/"

library=$(dirname "$(find "$copy" -name 'libkv.so')")
[ -e "$library/libkv.so" ] || fail "no libkv.so"
(cd "$copy" && find . -type f ! -path './include/*' ! -name 'libkv.so.*' ! -name orbitkv.pc | sort) \
	>"$root/other"
while read -r program; do
	case $program in
	./bin/orbitkv-manager | ./bin/orbitkv-replay | ./bin/orbitkv-bench) ;;
	*) fail "unexpected file $program" ;;
	esac
done <"$root/other"

# No path of the build machine is left in what was installed.
for file in "$library"/libkv.so.*.*.* "$copy"/bin/orbitkv-*; do
	if readelf -d "$file" | grep -E 'RPATH|RUNPATH' | grep -v '\[[$]ORIGIN/'; then
		fail "$file has a run path"
	fi
done

# The programs find their library in any prefix but the system's, where the loader looks anyway.
version=$(sed -n 's/^Version: *//p' "$pc")
[ "$prefix" != /usr ] || export LD_LIBRARY_PATH="$library"
said=$("$copy/bin/orbitkv-manager" --version)
[ "$(echo "$said" | head -n 1)" = "orbitkv-manager $version" ] || fail "orbitkv-manager says '$said', not $version"
export LD_LIBRARY_PATH="$library"

PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR="$root/copy"
[ "$(pkg-config --modversion orbitkv)" = "$version" ] || fail "pkg-config: version"
cflags=$(pkg-config --cflags orbitkv)
flags=$(pkg-config --cflags --libs orbitkv)

consume() {
	name=$1
	shift
	# shellcheck disable=SC2086 # words
	"$@" -Wall -Wextra -Werror -o "$root/$name" "$here/consumer.c" $flags ||
		fail "$name does not build"
	said=$("$root/$name") || fail "$name ended with $?"
	[ "$said" = exact ] || fail "$name says '$said'"
	echo "$name: exact"
}

cc=${CC:-cc}
# shellcheck disable=SC2086 # words
consume c11 $cc -std=c11 -Wpedantic
# shellcheck disable=SC2086 # words
consume gnu17 $cc -std=gnu17
cxx=${CXX:-g++}
if command -v "$cxx" >/dev/null; then
	consume c++11 "$cxx" -std=c++11 -Wpedantic -x c++
	consume c++20 "$cxx" -std=c++20 -x c++
else
	echo "no C++ compiler: C++ was not tried"
fi

# Every public header stands alone.
for header in "$source"/include/orbitkv/*.h; do
	echo "#include <orbitkv/$(basename "$header")>" >"$root/alone.c"
	# shellcheck disable=SC2086
	$cc -std=c11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only "$root/alone.c" $cflags ||
		fail "$(basename "$header") needs another header"
done
