#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Test the connector with a real vLLM on the CPU. The first time vLLM is installed in a cache folder,
# which ORBITKV_ENGINES names: 6 GB, a quarter of an hour.
#   test/engines.sh            all cases
#   test/engines.sh CASE...    some; they are the functions of test/engines/cases.py
#   test/engines.sh --short    a few, and nothing is installed: 77 where vLLM is not there
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
case "${1-}" in
-h | --help)
	sed -n '3,7s/^# //p' "$0"
	exit 0
	;;
--short) python=$("$root/test/engines/environment.sh" --there) ;;
*)
	"$root/test/tools/install-needed.sh" test
	python=$("$root/test/engines/environment.sh")
	;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$root/test/engines/package.sh" "$python" "$work/package"
# The logs of the last run stay in build/engines.
logs=${ORBITKV_BUILD:-$root/build}/engines
rm -rf "$logs"
mkdir -p "$logs"
cd "$work" # not in the sources, whose package has no library
PYTHONPATH=$work/package "$python" "$root/test/engines/cases.py" "$logs" "$@"
