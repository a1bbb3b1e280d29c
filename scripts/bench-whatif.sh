#!/usr/bin/env bash
# How right predictions are: programs of test/diagnosis and their fixed twins under the real daemon (root, 30 minutes), as a table on
# standard output. Fails below the goals. Arguments go to the test: -only 3,17; -keep FOLDER; -replay FOLDER; -doc FILE;
# -lanes N: N pairs at once, each on CPUs of its own.
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
what=(-all)
[ $# = 0 ] || what=("$@")
as_root "$ROOT/build/whatif.test" -test.run 'TestWhatIf$' -test.v -test.timeout 120m -daemon "$BIN/inferscoped" "${what[@]}"
