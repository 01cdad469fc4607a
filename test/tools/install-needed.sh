#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Install what building (or testing) needs on Debian 12, Ubuntu 24.04, or newer.
# usage: install-needed.sh build|test
# Says nothing and changes nothing when all is there. Without the right to install it prints the
# command to run and fails.
set -eu

# Without these checks of the lint suite, or the tests of the Python package, are skipped.
wanted=

build='gcc libc6-dev meson ninja-build pkgconf liburcu-dev libnuma-dev libxxhash-dev libjansson-dev'
case "${1-}" in
build) needed=$build ;;
test)
	needed="$build check libsubunit-dev spin"
	wanted='codespell python3-venv python3-dev'
	;;
*)
	echo "usage: $0 build|test" >&2
	exit 2
	;;
esac

if ! command -v dpkg-query >/dev/null; then
	echo "$0: this is no Debian or Ubuntu: the equivalents of these are needed: $needed" >&2
	exit 0
fi

# Which of these packages are not there?
absent() {
	# shellcheck disable=SC2016 # the format is dpkg's
	there=$(dpkg-query -W -f '${db:Status-Abbrev}|${Package}\n' "$@" 2>/dev/null |
		sed -n 's/^ii *|//p') || true
	for package; do
		printf '%s\n' "$there" | grep -qxF "$package" || printf ' %s' "$package"
	done
}

# shellcheck disable=SC2086 # words
missing=$(absent $needed)
optional=
# shellcheck disable=SC2086 # words
[ -z "$wanted" ] || optional=$(absent $wanted)
[ -n "$missing$optional" ] || exit 0

if [ "$(id -u)" = 0 ]; then
	as_root='env'
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
	as_root='sudo -n env'
elif [ -z "$missing" ]; then
	echo "$0: not there, and not needed:$optional" >&2
	exit 0
else
	echo "$0: these packages are missing; install them with:" >&2
	echo "  sudo apt-get update && sudo apt-get install --no-install-recommends$missing" >&2
	exit 1
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
	$as_root DEBIAN_FRONTEND=noninteractive \
		apt-get install -y -q --no-install-recommends "$@" >>"$log" 2>&1
}

# shellcheck disable=SC2086 # words
try() {
	echo "installing:$1"
	install $1 || {
		$as_root apt-get update -q >>"$log" 2>&1 && install $1
	} || {
		cat "$log" >&2
		echo "$0: apt-get could not install:$1" >&2
		return 1
	}
}

[ -z "$missing" ] || try "$missing"
[ -z "$optional" ] || try "$optional" || true
