#!/usr/bin/env bash
# Measures the accuracy of predictions: runs programs of test/diagnosis and their fixed twins under the real daemon
# (root, 53 minutes). Prints a row for each pair and replaces the section "bench-whatif" of docs/examples/simulator.md
# with a summary. Fails below the goals. Arguments replace the defaults (-all -doc docs/examples/simulator.md): -only
# 3,17; -keep FOLDER; -replay FOLDER; -doc FILE (absolute); -lanes N: N pairs at once, each on its own CPUs; -windows:
# GPU records in windows.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
measure_accuracy 'TestWhatIf$' 120m "$@"
