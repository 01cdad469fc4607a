#!/bin/sh
# Install what building (or testing) needs on Debian 12, Ubuntu 24.04, or newer.
# usage: install-needed.sh build|test
# Says nothing and changes nothing when all is there. Without the right to install it prints the
# command to run and fails.
set -eu

build='gcc libc6-dev meson ninja-build pkgconf liburcu-dev libnuma-dev libxxhash-dev libjansson-dev'
case "${1-}" in
build) needed=$build ;;
test) needed="$build check libsubunit-dev spin" ;;
*)
	echo "usage: $0 build|test" >&2
	exit 2
	;;
esac

if ! command -v dpkg-query >/dev/null; then
	echo "$0: this is no Debian or Ubuntu: the equivalents of these are needed: $needed" >&2
	exit 0
fi

# shellcheck disable=SC2016,SC2086 # the format is dpkg's; the list is words
there=$(dpkg-query -W -f '${db:Status-Abbrev}|${Package}\n' $needed 2>/dev/null |
	sed -n 's/^ii *|//p') || true
missing=
for package in $needed; do
	printf '%s\n' "$there" | grep -qxF "$package" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ]; then
	as_root='env'
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
	as_root='sudo -n env'
else
	echo "$0: these packages are missing; install them with:" >&2
	echo "  sudo apt-get update && sudo apt-get install --no-install-recommends$missing" >&2
	exit 1
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
	# shellcheck disable=SC2086 # both are words
	$as_root DEBIAN_FRONTEND=noninteractive \
		apt-get install -y -q --no-install-recommends $missing >>"$log" 2>&1
}

echo "installing:$missing"
install || {
	$as_root apt-get update -q >>"$log" 2>&1 && install
} || {
	cat "$log" >&2
	echo "$0: apt-get could not install:$missing" >&2
	exit 1
}
