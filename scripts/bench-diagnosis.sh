#!/usr/bin/env bash
# How right the diagnosis is: all programs of test/diagnosis under the real daemon, one after the other (root, 15 minutes),
# as tables, which replace docs/diagnosis-accuracy.md. Fails below the goals. Arguments go to the test: -only 3,17; -keep FOLDER;
# -lanes N: N programs at once, each on CPUs of its own.
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
go test -c -o "$ROOT/build/diagnosis.test" .
what=(-all -doc "$ROOT/docs/diagnosis-accuracy.md")
[ $# = 0 ] || what=("$@")
as_root "$ROOT/build/diagnosis.test" -test.run 'TestDiagnosis$' -test.v -test.timeout 60m -daemon "$BIN/inferscoped" "${what[@]}"
