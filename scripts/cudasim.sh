#!/usr/bin/env bash
# Builds the simulated CUDA libraries and the victim programs that use them; "cudasim.sh demo" those of make demo.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
mkdir -p "$ROOT/build"
# The tests build the same under the same lock.
for part in cudasim victims; do
	flock "$ROOT/build/cudasim.lock" make -s -j "$(nproc)" -C "$ROOT/testdata/$part" "${1:-all}"
done
