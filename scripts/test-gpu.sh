#!/usr/bin/env bash
# Checks InferScope against a real GPU and real PyTorch; test/gpu says how. Needs root.
# PYTHON chooses the interpreter that has torch and transformers; OUT takes the reports.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"
python=${PYTHON:-python3}
out=${OUT:-build/gpu}
nvidia-smi -L >/dev/null 2>&1 || die "no NVIDIA GPU here: nvidia-smi finds none"
"$python" -c 'import torch, transformers' 2>/dev/null || die "$python lacks torch or transformers: pip install torch transformers, or set PYTHON"
[ "$(id -u)" = 0 ] || die "needs root, as the daemon does: sudo make test-gpu"
[ -x bin/inferscoped ] || die "bin/inferscoped is missing: run make build first"
mkdir -p "$out"
exec "$python" test/gpu/calls_check.py bin "$out"
