#!/usr/bin/env bash
# Checks InferScope against a real GPU and real PyTorch; test/gpu says how. Needs root, and for the C++ workloads an
# nvcc (or the network:
# scripts/gpu-workloads.sh). PYTHON chooses the interpreter that has torch and transformers; OUT takes the reports;
# STAGES chooses among calls, cpu, accuracy, cost, budget, continuous, turns, start, floor, inside, starved, soak,
# threads, detach, together, memory, profilers, mps, diagnosis, run, collectives, framework (memory of PyTorch,
# sensors), sensors (links, their cost, and a bad pointer), requests, servers (what watching costs them), multi
# (default: all but multi, which needs several GPUs; collectives needs two, and skips with the reason else); LIMIT is
# the seconds that one may take (default: 3600; most of what they do fits in 520).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"
python=${PYTHON:-python3}
out=${OUT:-build/gpu}
nvidia-smi -L >/dev/null 2>&1 || die "no NVIDIA GPU here: nvidia-smi finds none"
"$python" -c 'import torch, transformers' 2>/dev/null || die "$python lacks torch or transformers: pip install torch transformers, or set PYTHON"
[ "$(id -u)" = 0 ] || die "needs root, as the daemon does: sudo make test-gpu"
[ -x bin/inferscoped ] || die "bin/inferscoped is missing: run make build first"
# The unwinder attaches to a tracepoint, whose number stands in tracefs.
[ -d /sys/kernel/tracing/events ] || mount -t tracefs tracefs /sys/kernel/tracing ||
	die "/sys/kernel/tracing is not mounted: mount -t tracefs tracefs /sys/kernel/tracing"
if [ ! -x bin/samplerbench ] && command -v go >/dev/null 2>&1; then
	CGO_ENABLED=0 go build -o bin/samplerbench ./test/samplerbench
fi
mkdir -p "$out"
failed=0
for stage in ${STAGES:-calls cpu accuracy cost budget continuous turns start floor inside starved soak threads detach together memory profilers mps diagnosis run collectives framework sensors requests servers}; do
	say "== $stage"
	if [ "$stage" = calls ] || [ "$stage" = cpu ]; then
		"$python" "test/gpu/${stage}_check.py" bin "$out" || failed=1
		continue
	fi
	if [ "$stage" = diagnosis ]; then
		"$python" test/gpu/diagnosis_check.py --bin bin --out "$out/diagnosis" --twins --limit "${LIMIT:-3600}" || failed=1
		continue
	fi
	if [ "$stage" = run ]; then
		"$python" test/gpu/run_check.py --bin bin --out "$out/run" || failed=1
		continue
	fi
	if [ "$stage" = collectives ]; then
		gpus=$(nvidia-smi -L | grep -c '^GPU') || true
		if [ "$gpus" -lt 2 ]; then
			say "skipped: ranks need two GPUs, nvidia-smi -L lists $gpus"
			continue
		fi
		"$python" test/gpu/collectives_check.py --bin bin --out "$out/collectives" --limit "${LIMIT:-600}" || failed=1
		continue
	fi
	case $stage in
	framework) "$python" test/gpu/memory_live_check.py bin "$out/framework" || failed=1 ;;
	sensors) "$python" test/gpu/sensors_check.py --bin bin --out "$out/sensors" --limit "${LIMIT:-120}" || failed=1 ;;
	requests) "$python" test/gpu/requests_check.py --bin bin || failed=1 ;;
	servers) "$python" test/gpu/server_cost.py --bin bin --limit "${LIMIT:-3600}" --out "$out" || failed=1 ;;
	esac
	case $stage in framework | sensors | requests | servers) continue ;; esac
	[ -x build/gpu-workloads/plain ] || scripts/gpu-workloads.sh || say "the C++ workloads are not built: only PyTorch's are checked"
	if [ "$stage" = memory ]; then
		"$python" test/gpu/memory_check.py --bin bin --out "$out" --attachments 60 || failed=1
		continue
	fi
	"$python" test/gpu/gpu_check.py --bin bin --out "$out" --stage "$stage" --limit "${LIMIT:-3600}" || failed=1
done
exit "$failed"
