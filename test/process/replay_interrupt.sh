#!/bin/sh
# ^C and SIGTERM end orbitkv-replay, its Manager and its engines, and leave nothing behind.
# usage: replay_interrupt.sh ORBITKV_REPLAY
set -u

replay=$1
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
	socket=$(tr '\0' '\n' <"/proc/${all%% *}/cmdline" | tail -n 1)
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

[ "$failed" -eq 0 ] && echo "an interrupted replay says so and leaves nothing behind"
exit "$failed"
