#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Make the virtual environment for the tests of the Python package, once for each list of
# requirements, and print where it is. Exit 77 with a reason where that cannot be.
# Usage: environment.sh ROOT BUILD_DIR
set -eu
requirements=$1/test/python/requirements.txt
where=$2/python-venv
mkdir -p "$2"
log=$2/python-venv.log

skip() {
	echo "skipped: python: $1" >&2
	exit 77
}

command -v python3 >/dev/null || skip 'no python3'
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
	skip 'the tools of these tests need Python 3.10'
python3 -c 'import ensurepip, venv' 2>/dev/null || skip 'no python3-venv'
python3 -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' \
	2>/dev/null || skip 'no Python.h (python3-dev)'

# Two tests may want it at the same time.
exec 9>"$2/python-venv.lock"
flock 9
if ! cmp -s "$requirements" "$where/requirements.txt" || ! "$where/bin/python" -c ''; then
	rm -rf "$where"
	python3 -m venv "$where" >"$log" 2>&1 || skip "python3 -m venv failed: $(tail -n 1 "$log")"
	"$where/bin/pip" install --quiet --disable-pip-version-check --retries 1 \
		-r "$requirements" >"$log" 2>&1 || skip "pip failed: $(grep -m 1 ERROR "$log")"
	cp "$requirements" "$where/requirements.txt"
fi
echo "$where"
