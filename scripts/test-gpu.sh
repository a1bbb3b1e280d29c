#!/usr/bin/env bash
# Checks InferScope against a real GPU and real PyTorch. Needs root and, for the C++ workloads, nvcc or the network
# (scripts/gpu-workloads.sh).
#   PYTHON  the interpreter that has torch and transformers (default: python3)
#   OUT     the folder for reports (default: build/gpu)
#   STAGES  which checks (default: all but multi, which needs several GPUs; collectives needs two, and is skipped
#           elsewhere): calls, cpu, run, diagnosis, collectives, framework (memory of PyTorch, sensors), sensors (links,
#           their cost, and a bad pointer), requests, servers (what watching costs them), memory, and the stages of
#           test/gpu/gpu_stages.py
#   LIMIT   the seconds that one of them may take (default: 3600; most of what they do fits in 520)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"
python=${PYTHON:-python3}
out=${OUT:-build/gpu}
nvidia-smi -L >/dev/null 2>&1 || die "no NVIDIA GPU here: nvidia-smi finds none"
"$python" -c 'import torch, transformers' 2>/dev/null ||
	die "$python lacks torch or transformers: pip install torch transformers, or set PYTHON"
[ "$(id -u)" = 0 ] || die "needs root, as the daemon does: sudo make test-gpu"
[ -x bin/inferscoped ] || die "bin/inferscoped is missing: run make build first"
# The unwinder attaches to a tracepoint, whose number stands in tracefs.
[ -d /sys/kernel/tracing/events ] || mount -t tracefs tracefs /sys/kernel/tracing ||
	die "/sys/kernel/tracing is not mounted: mount -t tracefs tracefs /sys/kernel/tracing"
if [ ! -x bin/samplerbench ] && command -v go >/dev/null 2>&1; then
	CGO_ENABLED=0 go build -o bin/samplerbench ./test/samplerbench
fi
mkdir -p "$out"
stages=${STAGES:-calls cpu accuracy cost budget continuous turns start floor inside starved soak threads detach together
memory profilers mps diagnosis run collectives framework sensors requests servers}
failed=0

# check PROGRAM ARGUMENT ... runs a program of test/gpu and notes whether it failed.
check() { "$python" "test/gpu/$1_check.py" "${@:2}" || failed=1; }

for stage in $stages; do
	say "== $stage"
	case $stage in
	calls | cpu) check "$stage" bin "$out" ;;
	diagnosis) check diagnosis --bin bin --out "$out/diagnosis" --twins --limit "${LIMIT:-3600}" ;;
	run) check run --bin bin --out "$out/run" ;;
	collectives)
		gpus=$(nvidia-smi -L | grep -c '^GPU') || true
		if [ "$gpus" -lt 2 ]; then
			say "skipped: ranks need two GPUs, nvidia-smi -L lists $gpus"
		else
			check collectives --bin bin --out "$out/collectives" --limit "${LIMIT:-600}"
		fi
		;;
	framework) check memory_live bin "$out/framework" ;;
	sensors) check sensors --bin bin --out "$out/sensors" --limit "${LIMIT:-120}" ;;
	requests) check requests --bin bin ;;
	servers) "$python" test/gpu/server_cost.py --bin bin --limit "${LIMIT:-3600}" --out "$out" || failed=1 ;;
	*)
		[ -x build/gpu-workloads/plain ] || scripts/gpu-workloads.sh ||
			say "the C++ workloads are not built: only PyTorch's are checked"
		if [ "$stage" = memory ]; then
			check memory --bin bin --out "$out" --attachments 60
		else
			check gpu --bin bin --out "$out" --stage "$stage" --limit "${LIMIT:-3600}"
		fi
		;;
	esac
done
exit "$failed"
