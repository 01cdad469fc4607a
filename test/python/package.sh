#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Build the wheel as pip does, see that auditwheel can make a manylinux wheel of it, install that,
# and run the tests of the package. Usage: package.sh ROOT BUILD_DIR TOOLKIT
set -eu
root=$1 build=$2 toolkit=$3
where=$("$(dirname "$0")/environment.sh" "$root" "$build")
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
PATH=$where/bin:$PATH
unset CFLAGS LDFLAGS PYTHONPATH
export PIP_DISABLE_PIP_VERSION_CHECK=1

cuda=--config-settings=setup-args=-Dtoolkit=$toolkit
if ! [ -x "$toolkit/bin/nvcc" ] || ! command -v g++ >/dev/null; then
	echo "skipped: the copy kernel in the Python package: no nvcc or no g++"
	cuda=--config-settings=setup-args=-Dcuda=disabled
	export ORBITKV_TEST_HOST_ONLY=1
fi

# Never without the kernel, unless one asked for that.
if meson setup "$wheels/no-nvcc" "$root" -Dpython=enabled -Dtests=disabled \
	-Dtoolkit=/nonexistent >"$wheels/log" 2>&1 || ! grep -q 'needs cuda.h and nvcc' "$wheels/log"; then
	echo "a package without nvcc was not refused:"
	cat "$wheels/log"
	exit 1
fi

pip wheel --quiet --no-build-isolation --no-deps -w "$wheels" "$cuda" \
	--config-settings="build-dir=$build/python-wheel" --config-settings=compile-args=-j2 "$root"
auditwheel repair -w "$wheels/repaired" "$wheels"/*.whl >"$wheels/log" 2>&1 || {
	cat "$wheels/log"
	auditwheel show "$wheels"/*.whl
	exit 1
}
case $(ls "$wheels/repaired") in
orbitkv-*-cp39-abi3-manylinux*.whl) ;;
*)
	echo "a wheel that is not for Python 3.9 and later, or not for manylinux:"
	ls "$wheels" "$wheels/repaired"
	exit 1
	;;
esac
pip install --quiet --force-reinstall --no-deps "$wheels"/repaired/*.whl
cd "$wheels" # not in the sources
# A CUDA driver that needs no GPU, where the build has one.
[ ! -e "$build/test/standin/libcuda.so.1" ] || export LD_LIBRARY_PATH="$build/test/standin"
python -m pytest -rs -p no:cacheprovider "$root/python/tests"
