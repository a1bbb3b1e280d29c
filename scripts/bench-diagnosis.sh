#!/usr/bin/env bash
# Measures the accuracy of the diagnosis: runs all programs of test/diagnosis under the real daemon, one after the other
# (root, 15 minutes). Prints a row for each program and replaces the section "bench-diagnosis" of
# docs/examples/simulator.md with a summary. Fails below the goals. Arguments replace the defaults (-all -doc
# docs/examples/simulator.md): -only 3,17; -keep FOLDER; -replay FOLDER; -doc FILE (absolute); -lanes N: N programs at
# once, each on its own CPUs; -pin LEVELS: sources fixed at levels and no overhead governor, to see what a level loses:
# -pin samples=49, -pin 'samples=off,scheduling=off' (inferscoped --pin-level lists all levels when it does not
# understand one).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
measure_accuracy 'TestDiagnosis$' 60m "$@"
