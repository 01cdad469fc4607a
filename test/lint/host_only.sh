#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A build without CUDA, in which every warning is an error. Usage: host_only.sh ROOT
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
run() {
	"$@" >"$dir/log" 2>&1 || {
		grep -A 6 -e '^FAILED' -e 'error' "$dir/log" || cat "$dir/log"
		exit 1
	}
}
run meson setup "$dir/build" "$1" -Dcuda=disabled -Dtests=disabled -Dwerror=true
run ninja -C "$dir/build"
echo "a host-only build: $(grep -c '"file"' "$dir/build/compile_commands.json") files, no warnings"
