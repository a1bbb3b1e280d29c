#!/usr/bin/env bash
# Checks InferScope against a real GPU and real PyTorch; test/gpu says how. Needs root.
# PYTHON chooses the interpreter that has torch and transformers; OUT takes the reports;
# CHECKS which checks run: calls, cpu, or both (the default).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"
python=${PYTHON:-python3}
out=${OUT:-build/gpu}
checks=${CHECKS:-calls cpu}
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
code=0
for check in $checks; do
	say "== $check"
	"$python" "test/gpu/${check}_check.py" bin "$out" || code=1
done
exit "$code"
