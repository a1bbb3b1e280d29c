#!/usr/bin/env bash
# The whole chain on a simulated GPU: builds, starts a program that decodes tokens,
# attaches the daemon to it while it runs, prints the report, and leaves nothing behind.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"

[ "$(uname -s)" = Linux ] || die "InferScope watches Linux processes: run this on Linux"
[ -r /sys/kernel/btf/vmlinux ] ||
	die "this kernel has no BTF (/sys/kernel/btf/vmlinux), which InferScope needs:" \
		"Linux 5.15 or newer of any current distribution has it"
use_go
scripts/install-deps.sh demo
say "building ..."
scripts/cudasim.sh demo & # Go waits for downloads at first
scripts/build.sh
wait $!

# Ask for the password now, in the foreground; the daemon starts in the background.
[ "$(id -u)" = 0 ] || as_root true

# running PID: a daemon behind sudo is not ours to signal, but its folder in /proc shows.
running() { [ -d "/proc/$1" ]; }

work=$(mktemp -d)
victim='' daemon=''
cleanup() {
	[ -z "$victim" ] || kill "$victim" 2>/dev/null || true
	# The daemon leaves by itself when its target does (--exit-with-target); insist if not.
	if [ -n "$daemon" ]; then
		for _ in $(seq 100); do running "$daemon" && sleep 0.05; done
		! running "$daemon" || as_root kill "$daemon" || true
		wait "$daemon" 2>/dev/null || true
	fi
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# wait_for FILE TEXT PID: until FILE contains TEXT; fails when PID ends before or 20 s pass.
wait_for() {
	for _ in $(seq 400); do
		! grep -q "$2" "$1" || return 0
		running "$3" || return 1
		sleep 0.05
	done
	return 1
}

# A decode loop as an eager PyTorch model runs it: for each token the CPU prepares,
# copies the input, launches kernels one by one, and waits for the result.
LD_LIBRARY_PATH=$ROOT/build/cudasim/r535:$ROOT/build/cudasim \
	build/victims/victim --lib runtime "decode 1000000 kernels=24 h2d=16384 d2h=4 cpu=300us sample=50us" \
	>"$work/victim.log" 2>&1 &
victim=$!
wait_for "$work/victim.log" ready "$victim" || die "the demo program did not start: $(cat "$work/victim.log")"
say "program $victim is running; attaching to it:"
say "    sudo bin/inferscoped --pid $victim"

export INFERSCOPE_SOCKET=$work/inferscoped.sock
as_root bin/inferscoped --pid "$victim" --socket "$INFERSCOPE_SOCKET" --exit-with-target \
	--cupti "$ROOT/build/cudasim/libcupti.so.13" >"$work/daemon.log" 2>&1 &
daemon=$!
wait_for "$work/daemon.log" ready "$daemon" || die "the daemon did not start:
$(cat "$work/daemon.log")"

say "    bin/inferscope report --pid $victim --for 3s"
say ""
bin/inferscope report --pid "$victim" --for 3s

say ""
say "That was a simulated GPU. To watch a program of yours on a real one:"
say "    sudo bin/inferscoped --pid PID          and, elsewhere:  bin/inferscope report --pid PID"
if nvidia-smi -L >/dev/null 2>&1; then
	say "This machine has one: $(nvidia-smi -L | head -n 1)"
	find='import importlib.util as u, sys; sys.exit(not (u.find_spec("torch") and u.find_spec("transformers")))'
	if python3 -c "$find" 2>/dev/null; then
		say "and PyTorch with transformers: 'sudo make test-gpu' watches a GPT-2 decode on it."
	fi
fi
