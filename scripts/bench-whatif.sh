#!/usr/bin/env bash
# Measures the accuracy of predictions: runs programs of test/diagnosis and their fixed twins under the real daemon
# (root, 44 minutes). Prints a row for each pair and replaces the section "bench-whatif" of docs/examples/simulator.md
# with a summary. Fails below the goals. Arguments replace the defaults (-all -doc docs/examples/simulator.md): -only
# 3,17; -keep FOLDER; -replay FOLDER; -doc FILE (absolute); -lanes N: N pairs at once, each on its own CPUs; -windows: GPU
# records in windows.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
use_go

scripts=$ROOT/scripts
"$scripts/install-deps.sh" demo bench
"$scripts/cudasim.sh"
make -s -C "$ROOT/testdata/scenarios"
"$scripts/build.sh"
# Everything is built before root comes in, so that no file of root's is left in a person's caches.
cd "$ROOT/test/diagnosis"
go test -c -o "$ROOT/build/whatif.test" .
what=(-all -doc "$ROOT/docs/examples/simulator.md")
[ $# = 0 ] || what=("$@")
as_root "$ROOT/build/whatif.test" -test.run 'TestWhatIf$' -test.v -test.timeout 120m -daemon "$BIN/inferscoped" "${what[@]}"
