#!/bin/bash
# OrbitKV in one command: an engine computes a prompt and is killed; the next one restores it.
set -euo pipefail

help() {
	cat <<'END'
usage: examples/quickstart.sh [options]

Installs what the build needs, builds, starts a Manager, and runs a small model three times:
cold (then killed with SIGKILL), restored by a new process, and restored with one flipped byte.
Exit 0: the restored run gave bit for bit the same, and the flipped byte was noticed.

  --embedded           no Manager process, all runs in one process
  --device host|cuda   where the engine's KV pages are (default: host); without a GPU: exit 77
  --prompt FILE        text to start from (default: README.md)
  --max-tokens N       of the prompt, 17 to 4096 (default: 3072; a cold start takes seconds)
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

say() { printf '%s\n' "$*"; }
die() {
	printf 'quickstart: %s\n' "$*" >&2
	exit 1
}

misused() {
	printf 'quickstart: %s; see --help\n' "$*" >&2
	exit 2
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
		[ $# -ge 2 ] || misused "$1 needs a value"
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
case $device in
host | cuda) ;;
*) misused "--device $device: host or cuda" ;;
esac
{ [[ $tokens =~ ^[0-9]{2,4}$ ]] && ((10#$tokens >= 17 && 10#$tokens <= 4096)); } ||
	misused "--max-tokens $tokens: 17 to 4096"
[ -r "$prompt" ] || misused "--prompt $prompt: no such file"
common=(--decode 16 --device "$device" --max-tokens "$tokens" --prompt "$prompt")

dir=$(mktemp -d /tmp/orbitkv-quickstart-XXXXXX)
socket=$dir/manager.sock
manager_pid=
engine_pid=

clean_up() {
	local status=$?

	trap - EXIT
	[ -z "$engine_pid" ] || kill "$engine_pid" 2>/dev/null || true
	[ -z "$manager_pid" ] || kill "$manager_pid" 2>/dev/null || true
	wait 2>/dev/null || true
	rm -rf "$dir"
	exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

build_all() {
	"$top/test/tools/install-needed.sh" build
	say "building in $build"
	{
		[ -f "$build/build.ninja" ] || meson setup "$build" "$top"
		meson compile -C "$build" orbitkv-manager mini_engine
	} >"$dir/build.log" 2>&1 || {
		cat "$dir/build.log" >&2
		die 'the build failed'
	}
	engine=$build/examples/mini_engine
	manager=$(find "$build" -name orbitkv-manager -type f -perm -u+x -print -quit)
	[ -n "$manager" ] || die "no orbitkv-manager in $build"
}

start_manager() {
	"$manager" --socket "$socket" --memory 256M >"$dir/manager.log" 2>&1 &
	manager_pid=$!
	for _ in $(seq 600); do
		if "$manager" status --socket "$socket" >/dev/null 2>&1; then
			return
		fi
		kill -0 "$manager_pid" 2>/dev/null || break
		sleep 0.05
	done
	cat "$dir/manager.log" >&2
	die 'the Manager does not answer'
}

show() { [ "$verbose" = no ] || sed 's/^/    /' "$1"; }

# Run the engine; everything it has to say is in its report and, with --verbose, shown.
run() {
	local name=$1 status=0

	shift
	timeout -k 5 600 "$engine" "${common[@]}" "$@" >"$dir/$name.log" 2>"$dir/$name.err" &
	engine_pid=$!
	wait "$engine_pid" || status=$?
	engine_pid=
	show "$dir/$name.log"
	cat "$dir/$name.err" >&2
	[ "$status" != 77 ] || exit 77
	[ "$status" = 0 ] || die "the $name run failed with exit code $status"
}

# The first engine says READY when all is published, and then waits for what happens to it.
run_and_kill() {
	local line status=0

	mkfifo "$dir/cold.fifo"
	"$engine" "${common[@]}" --socket "$socket" --role cold --hold \
		--report "$dir/report.cold" >"$dir/cold.fifo" 2>"$dir/cold.err" &
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
	cat "$dir/cold.err" >&2
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

at_least_one() { if [ "${1:-0}" -gt 0 ]; then echo yes; else echo no; fi; }

print_table() {
	local cold restored noticed=no

	cold=$(value cold first_token_ms)
	restored=$(value restored first_token_ms)
	[ "$(same digest flipped)" = yes ] || noticed=yes
	[ "$(at_least_one "$(value flipped restored_blocks)")" = yes ] || noticed='not tried'
	say
	row 'prompt' "$(value cold prompt_tokens) tokens"
	row 'time to first token, cold: the prompt is computed' "$cold ms"
	row 'time to first token, restored: its KV comes from the cache' "$restored ms"
	row 'speed-up' "$(awk -v a="$cold" -v b="$restored" 'BEGIN { printf "%.1f times", a / b }')"
	row 'restored blocks' "$(value restored restored_blocks)"
	row 'restored bytes' "$(value restored restored_bytes)"
	row 'blocks were found' "$(at_least_one "$(value restored restored_blocks)")" yes
	row 'they went to differently numbered pages' \
		"$(at_least_one "$(value restored moved_pages)")" yes
	row 'tokens identical' "$(same tokens restored)" yes
	row 'logits identical, bit for bit' "$(same digest restored)" yes
	row 'bytes that differ from an independently recomputed reference' \
		"$(value restored differing_bytes)" 0
	row 'bytes changed outside of the pages in use' "$(value restored stray_bytes)" 0
	row 'one flipped byte is noticed' "$noticed" yes
	say
}

build_all
if [ "$embedded" = yes ]; then
	say 'one engine computes the prompt, wipes its pages, and restores them (embedded Manager)'
	run embedded --embedded --flip-byte --report "$dir/report"
else
	say 'starting the Manager'
	start_manager
	say 'first engine: computes the prompt, publishes its blocks, and is killed with SIGKILL'
	run_and_kill
	say 'second engine: restores them layer by layer, and then checks them by computing all again'
	run restored --socket "$socket" --role restored --report "$dir/report.restored"
	say 'third engine: the same with one flipped byte'
	run flipped --socket "$socket" --role restored --flip-byte \
		--report "$dir/report.flipped"
fi
print_table
[ "$failed" = 0 ] || die 'something above is not as it must be'
say 'all as it must be'
