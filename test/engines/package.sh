#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Build the Python package and unpack it for one Python; PYTHONPATH=DIR finds it.
# Usage: package.sh PYTHON DIR [cuda]
set -eu
python=$1 where=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${ORBITKV_BUILD:-$root/build}
tools=$("$root/test/python/environment.sh" "$root" "$build")
device=--config-settings=setup-args=-Dcuda=disabled
[ "${3-}" != cuda ] || device=--config-settings=setup-args=-Dcuda=enabled
unset CFLAGS LDFLAGS PYTHONPATH
export PIP_DISABLE_PIP_VERSION_CHECK=1
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
PATH=$tools/bin:$PATH pip wheel --quiet --no-build-isolation --no-deps -w "$wheels" \
	"$device" --config-settings=compile-args=-j2 \
	--config-settings="build-dir=$build/python-engines${3:+-$3}" "$root"
"$python" -m pip install --quiet --no-deps --target "$where" "$wheels"/*.whl
