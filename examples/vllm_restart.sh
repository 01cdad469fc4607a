#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# vLLM computes a prompt and is killed; the next vLLM gets it from the cache.
set -eu
help() {
	cat <<'END'
usage: examples/vllm_restart.sh [--gpu [--python PYTHON]]

Installs vLLM for the CPU in a virtual environment (once: 6 GB in ~/.cache/orbitkv/engines, or the
folder that ORBITKV_ENGINES names, a quarter of an hour), writes a small model of random weights,
starts a Manager, and runs a prompt in vLLM, which is then killed with SIGKILL. A new vLLM runs the
same prompt. Prints the time to first token and how many tokens were restored.
Exit 0: the tokens are those of the first run, and so are the log probabilities of a hit in vLLM's
own prefix cache.

  --gpu             use a GPU, with the vLLM that PYTHON has; the package is built with CUDA
  --python PYTHON   default: python3
END
}

root=$(cd "$(dirname "$0")/.." && pwd)
gpu='' python=python3
while [ $# -gt 0 ]; do
	case $1 in
	-h | --help)
		help
		exit 0
		;;
	--gpu) gpu=cuda ;;
	--python)
		[ $# -gt 1 ] || { echo "--python takes a program; see --help" >&2 && exit 2; }
		python=$2
		shift
		;;
	*)
		echo "unknown option: $1; see --help" >&2
		exit 2
		;;
	esac
	shift
done

"$root/test/tools/install-needed.sh" build
if [ -n "$gpu" ]; then
	"$python" -c 'import vllm' || { echo "$python has no vLLM" >&2 && exit 1; }
else
	python=$("$root/test/engines/environment.sh")
fi
work=$(mktemp -d)
manager=
end() {
	[ -z "$manager" ] || kill "$manager" 2>/dev/null || true
	rm -rf "$work"
}
trap end EXIT
trap 'exit 130' INT TERM
echo 'building the package' >&2
"$root/test/engines/package.sh" "$python" "$work/package" $gpu
export PYTHONPATH="$work/package"
cd "$work"
"$python" "$root/test/engines/model.py" model

mkfifo ready
"$work/package/bin/orbitkv-manager" --socket "$work/socket" --memory 256M >ready 2>manager.log &
manager=$!
read -r line <ready || {
	cat manager.log >&2
	exit 1
}
echo "the Manager is ${line%%:*}" >&2

# Usage: run NAME. It writes NAME.json, and waits to be killed when all is stored.
run() {
	echo "vLLM, the $1 one" >&2
	if "$python" "$root/examples/vllm_restart.py" "$work/model" "$work/socket" "$work/$1.json" \
		${gpu:+--gpu} >"$work/$1.log" 2>&1; then
		echo "vLLM was not killed" >&2
		exit 1
	elif ! [ -s "$work/$1.json" ]; then
		tail -n 30 "$work/$1.log" >&2
		exit 1
	fi
}
run first
run second
"$python" "$root/examples/vllm_restart.py" --compare "$work/first.json" "$work/second.json"
