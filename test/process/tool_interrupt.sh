#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ^C and SIGTERM end orbitkv-replay, its Manager and its engines, and leave nothing behind; nor does
# SIGKILL of orbitkv-bench.
# usage: tool_interrupt.sh ORBITKV_REPLAY ORBITKV_BENCH
set -u

replay=$1 bench=$2
failed=0
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

command -v setsid >/dev/null || {
	echo "skipped: no setsid"
	exit 77
}

fail() {
	echo "FAILED: $*"
	failed=1
}

# How the replay in the background ended. Usage: ended STATUS WORD WHAT
ended() {
	wait "$pid"
	status=$?
	[ "$status" -eq "$1" ] || fail "$3: status $status, not $1"
	[ "$(tail -n 1 "$tmp/said")" = "orbitkv-replay: $2" ] || fail "$3: says '$(cat "$tmp/said")'"
	[ ! -s "$tmp/table" ] || fail "$3: prints results"
}

children() {
	cat "/proc/$pid/task/$pid/children" 2>/dev/null
}

# The last argument of the first child.
manager_socket() {
	tr '\0' '\n' <"/proc/${1%% *}/cmdline" | tail -n 1
}

# A trace that nobody writes any more.
mkfifo "$tmp/trace"
setsid "$replay" --trace "$tmp/trace" --memory 16M >"$tmp/table" 2>"$tmp/said" &
pid=$!
exec 3>"$tmp/trace"
kill -s INT -- "-$pid"
exec 3>&-
ended 130 interrupted "while it reads a trace"

# Far more requests than are replayed until somebody stops them.
awk 'BEGIN { for (i = 0; i < 200000; i++) printf "{\"hash_ids\": [%d, %d]}\n", 2 * i, 2 * i + 1 }' \
	>"$tmp/long"

# Usage: stops SIGNAL STATUS WORD
stops() {
	setsid "$replay" --trace "$tmp/long" --memory 16M --engines 2 >"$tmp/table" 2>"$tmp/said" &
	pid=$!
	while [ "$(children | wc -w)" -lt 3 ] && kill -0 "$pid" 2>/dev/null; do :; done
	all=$(children)
	socket=$(manager_socket "$all")
	case $socket in
	/tmp/orbitkv-replay-*/manager.sock) ;;
	*) fail "the first child is no Manager: $socket" ;;
	esac
	kill -s "$1" -- "-$pid"
	ended "$2" "$3" "while it replays"
	[ ! -e "${socket%/*}" ] || fail "$1: ${socket%/*} is left behind"
	for child in $all; do
		! kill -0 "$child" 2>/dev/null || fail "$1: process $child is left behind"
	done
}

stops INT 130 interrupted
stops TERM 143 terminated

# Nobody is left to stop the Manager or to remove its folder, but the Manager itself.
"$bench" --quick --case geometry >/dev/null 2>&1 &
pid=$!
socket=
while [ ! -S "$socket" ] && kill -0 "$pid" 2>/dev/null; do
	all=$(children)
	[ -z "$all" ] || socket=$(manager_socket "$all" 2>/dev/null)
done
case $socket in
/tmp/orbitkv-bench-*/manager.sock) ;;
*) fail "orbitkv-bench has no Manager: $socket" ;;
esac
kill -s KILL "$pid"
wait "$pid" 2>/dev/null
while [ -e "${socket%/*}" ]; do :; done

[ "$failed" -eq 0 ] && echo "interrupted programs say so and leave nothing behind"
exit "$failed"
