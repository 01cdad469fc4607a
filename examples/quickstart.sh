#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# OrbitKV in one command: an engine computes a prompt and is killed; the next one restores it.
set -euo pipefail

help() {
	cat <<'END'
usage: examples/quickstart.sh [options]

Installs what the build needs, builds, starts a Manager, and runs a small model three times:
cold (then killed with SIGKILL), restored by a new process, and restored with one flipped byte.
Exit 0: the restored run gave bit for bit the same, and with the flipped byte it did not.
What it does at the moment goes to stderr, the result to stdout.

  --embedded           no Manager process, all runs in one process
  --device host|cuda   where the engine's KV pages are (default: host); without a GPU: exit 77
  --prompt FILE        text to start from, 17 bytes or more (default: README.md)
  --max-tokens N       of the prompt, 17 to 4096 (default: 3072); one byte is one token
  --build DIR          build directory (default: build)
  -v, --verbose        show what each run prints
  -h, --help           this text
END
}

top=$(cd "$(dirname "$0")/.." && pwd)
build=$top/build
prompt=$top/README.md
embedded=no
verbose=no
device=host
tokens=3072

live=no # whether stderr is a terminal, where a line can renew itself
[ ! -t 2 ] || [ "${TERM:-dumb}" = dumb ] || live=yes

say() { printf '%s\n' "$*"; }
clear_line() { [ "$live" = no ] || printf '\r\033[K' >&2; }
step() {
	clear_line
	say "$*" >&2
}

# How far something is: in place on a terminal, every two seconds elsewhere.
next_line=2
progress() {
	if [ "$live" = yes ]; then
		printf '\r\033[K  %s' "$*" >&2
	elif ((SECONDS >= next_line)); then
		say "  $*" >&2
		next_line=$((SECONDS + 2))
	fi
}

die() {
	step "quickstart: $*"
	exit 1
}

misused() {
	step "quickstart: $*; see --help"
	exit 2
}

expected() {
	case $1 in
	--device) say 'host or cuda' ;;
	--max-tokens) say '17 to 4096' ;;
	--prompt) say 'a file that can be read' ;;
	--build) say 'a directory' ;;
	esac
}

while [ $# -gt 0 ]; do
	case $1 in
	-h | --help)
		help
		exit 0
		;;
	--embedded) embedded=yes ;;
	-v | --verbose) verbose=yes ;;
	--device | --prompt | --max-tokens | --build)
		[ $# -ge 2 ] || misused "$1: expected $(expected "$1")"
		case $1 in
		--prompt) prompt=$2 ;;
		--build) build=$2 ;;
		--device) device=$2 ;;
		--max-tokens) tokens=$2 ;;
		esac
		shift
		;;
	*) misused "$1: no such option" ;;
	esac
	shift
done

refuse() { misused "$1 '$2': expected $(expected "$1")"; }
[ "$device" = host ] || [ "$device" = cuda ] || refuse --device "$device"
{ [[ $tokens =~ ^[0-9]{2,4}$ ]] && ((10#$tokens >= 17 && 10#$tokens <= 4096)); } ||
	refuse --max-tokens "$tokens"
{ [ -f "$prompt" ] && [ -r "$prompt" ]; } || refuse --prompt "$prompt"
bytes=$(wc -c <"$prompt")
[ "$bytes" -ge 17 ] || misused "--prompt $prompt: $bytes bytes; expected 17 or more"
[ -d "$build" ] || { [ -n "$build" ] && [ ! -e "$build" ]; } || refuse --build "$build"
common=(--progress --decode 16 --device "$device" --max-tokens "$tokens" --prompt "$prompt")

dir=$(mktemp -d /tmp/orbitkv-quickstart-XXXXXX)
socket=$dir/manager.sock
manager_pid=
engine_pid=
teller_pid=

clean_up() {
	local status=$?

	trap - EXIT
	stop_teller
	[ -z "$engine_pid" ] || kill "$engine_pid" 2>/dev/null || true
	[ -z "$manager_pid" ] || kill "$manager_pid" 2>/dev/null || true
	wait 2>/dev/null || true
	rm -rf "$dir"
	exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# tell SO_FAR: time and again have this function set so_far; it is given the seconds that passed.
tell() {
	local began=$SECONDS so_far=

	next_line=$((SECONDS + 2))
	while sleep 0.5 && kill -0 $$ 2>/dev/null; do
		"$1" $((SECONDS - began))
		progress "$so_far"
	done
}

stop_teller() {
	if [ -n "$teller_pid" ]; then
		kill "$teller_pid" 2>/dev/null || true
		wait "$teller_pid" 2>/dev/null || true
	fi
	teller_pid=
	clear_line
}

# attended SO_FAR COMMAND: the command runs in front, so that ^C ends it as well.
attended() {
	local status=0

	tell "$1" &
	teller_pid=$!
	"$2" || status=$?
	stop_teller
	return "$status"
}

install_needed() {
	local line

	"$top/test/tools/install-needed.sh" build 2>"$dir/install.log" |
		while IFS= read -r line; do step "$line"; done
}

install_so_far() { so_far="installing what the build needs: $1 s"; }

# A shell of its own: the traps of this one must not run with its stderr in the log.
compile() (
	exec >"$dir/build.log" 2>&1
	[ -f "$build/build.ninja" ] || meson setup "$build" "$top" || exit
	meson compile -C "$build" orbitkv-manager mini_engine
)

build_so_far() {
	local line

	so_far="preparing the build: $1 s"
	while IFS= read -r line; do
		[[ ! $line =~ ^\[([0-9]+)/([0-9]+)\] ]] ||
			so_far="building: ${BASH_REMATCH[1]} of ${BASH_REMATCH[2]}"
	done <"$dir/build.log"
}

build_all() {
	local status=0

	attended install_so_far install_needed || status=$?
	cat "$dir/install.log" >&2
	[ "$status" = 0 ] || exit "$status"
	step "building in $build"
	: >"$dir/build.log"
	attended build_so_far compile || {
		cat "$dir/build.log" >&2
		die 'the build failed'
	}
	engine=$build/examples/mini_engine
	manager=$(find "$build" -name orbitkv-manager -type f -perm -u+x -print -quit)
	[ -n "$manager" ] || die "no orbitkv-manager in $build"
}

start_manager() {
	local began=$SECONDS

	"$manager" --socket "$socket" --memory 256M >"$dir/manager.log" 2>&1 &
	manager_pid=$!
	for _ in $(seq 600); do
		if "$manager" status --socket "$socket" >/dev/null 2>&1; then
			clear_line
			return
		fi
		kill -0 "$manager_pid" 2>/dev/null || break
		[ "$SECONDS" = "$began" ] || progress "waiting: $((SECONDS - began)) s"
		sleep 0.05
	done
	clear_line
	cat "$dir/manager.log" >&2
	die 'the Manager does not answer'
}

show() { [ "$verbose" = no ] || sed 's/^/    /' "$1"; }

# Run the engine; what it found out is in its report and, with --verbose, shown. It says on stderr
# how far it is, and may write there although it runs behind a timeout.
run() {
	local name=$1 status=0

	shift
	timeout --foreground -k 5 600 "$engine" "${common[@]}" "$@" >"$dir/$name.log" &
	engine_pid=$!
	wait "$engine_pid" || status=$?
	engine_pid=
	show "$dir/$name.log"
	[ "$status" != 77 ] || exit 77
	[ "$status" = 0 ] || die "the $name run failed with exit code $status"
}

# The first engine says READY when all is published, and then waits for what happens to it.
run_and_kill() {
	local line status=0

	mkfifo "$dir/cold.fifo"
	"$engine" "${common[@]}" --socket "$socket" --role cold --hold \
		--report "$dir/report.cold" >"$dir/cold.fifo" &
	engine_pid=$!
	exec 3<"$dir/cold.fifo"
	while IFS= read -r -t 600 line <&3 && [ "$line" != READY ]; do
		say "$line" >>"$dir/cold.log"
	done
	[ "${line-}" != READY ] || kill -9 "$engine_pid"
	wait "$engine_pid" 2>/dev/null || status=$?
	engine_pid=
	exec 3<&-
	[ ! -f "$dir/cold.log" ] || show "$dir/cold.log"
	[ "$status" != 77 ] || exit 77
	[ "$status" = 137 ] || die "the cold run failed with exit code $status"
}

# value RUN KEY
value() { sed -n "s/^$2=//p" "$dir/report.$1"; }

same() {
	if [ -n "$(value cold "$1")" ] && [ "$(value cold "$1")" = "$(value "$2" "$1")" ]; then
		echo yes
	else
		echo no
	fi
}

# row TEXT VALUE [WHAT IT MUST BE]
failed=0
row() {
	local mark=

	if [ $# -eq 3 ] && [ "$2" != "$3" ]; then
		mark="   <- must be $3"
		failed=1
	fi
	printf '  %-62s %s%s\n' "$1" "$2" "$mark"
}

commas() {
	local number=$1

	while [[ $number =~ ^([0-9]+)([0-9]{3})(,.*)?$ ]]; do
		number=${BASH_REMATCH[1]},${BASH_REMATCH[2]}${BASH_REMATCH[3]}
	done
	say "$number"
}

at_least_one() { if [ "${1:-0}" -gt 0 ]; then echo yes; else echo no; fi; }

print_table() {
	local cold restored noticed=no

	cold=$(value cold first_token_ms)
	restored=$(value restored first_token_ms)
	[ "$(same digest flipped)" = yes ] || noticed=yes
	[ "$(at_least_one "$(value flipped restored_blocks)")" = yes ] || noticed='not tried'
	say
	row 'prompt' "$(commas "$(value cold prompt_tokens)") tokens"
	row 'time to first token, cold: the prompt is computed' "$cold ms"
	row 'time to first token, restored: its KV comes from the cache' "$restored ms"
	row 'speed-up' "$(awk -v a="$cold" -v b="$restored" 'BEGIN { printf "%.1f times", a / b }')"
	row 'restored blocks (the last block is always computed)' "$(commas "$(value restored restored_blocks)")"
	row 'restored bytes' "$(commas "$(value restored restored_bytes)")"
	row 'blocks were found' "$(at_least_one "$(value restored restored_blocks)")" yes
	row 'they went to differently numbered pages' \
		"$(at_least_one "$(value restored moved_pages)")" yes
	row 'tokens identical' "$(same tokens restored)" yes
	row 'logits identical, bit for bit' "$(same digest restored)" yes
	row 'bytes that differ from an independently recomputed reference' \
		"$(value restored differing_bytes)" 0
	row 'bytes changed outside of the pages in use' "$(value restored stray_bytes)" 0
	row 'control: with one byte flipped in the cache the logits differ' "$noticed" yes
	say
}

build_all
if [ "$embedded" = yes ]; then
	step 'one engine computes the prompt, wipes its pages, and restores them (embedded Manager)'
	run embedded --embedded --flip-byte --report "$dir/report"
else
	step 'starting the Manager'
	start_manager
	step 'first engine: computes the prompt, publishes its blocks, and is killed with SIGKILL'
	run_and_kill
	step 'second engine: restores them layer by layer, and then checks them by computing all again'
	run restored --socket "$socket" --role restored --report "$dir/report.restored"
	step 'third engine: the same with one flipped byte'
	run flipped --socket "$socket" --role restored --flip-byte \
		--report "$dir/report.flipped"
fi
print_table
[ "$failed" = 0 ] || die 'something above is not as it must be'
say 'all as it must be'
