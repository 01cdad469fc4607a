#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What orbitkv-replay says of a call that failed before any stage: no stage, instead of "(none)".
# usage: stages.sh [path of orbitkv-replay]
set -u

here=$(cd "$(dirname "$0")" && pwd)
replay=${1:-$here/../../build/orbitkv-replay}
if [ ! -x "$replay" ]; then
	echo "skipped: no orbitkv-replay at $replay"
	exit 77
fi

trace=$(mktemp)
trap 'rm -f "$trace"' EXIT
echo '{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}' >"$trace"
# 2 GiB of arenas do not fit an address space of 1 GiB.
# shellcheck disable=SC3045 # dash and bash have it
said=$(ulimit -v 1048576 && "$replay" --trace "$trace" --memory 2G 2>&1)
case $said in
*"okv_manager_create: OKV_E_NOMEM mapping a shard"*) exit 0 ;;
*OKV_E_BUDGET*)
	echo "skipped: no 2 GiB of memory to ask for"
	exit 77
	;;
esac
echo "FAILED: $said"
exit 1
