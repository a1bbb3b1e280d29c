#!/usr/bin/env bash
# What the tests do 25 times with the daemon, and 1,000 times with its source of GPU activity alone, by the thousand
# with the daemon: one process on the simulated CUDA is attached to, recorded and left CYCLES times (default: 1,000),
# and on four of them the daemon is killed KILLS times (default: 200, as in the tests) at random instants. The processes
# must be unharmed, and hold no more than after the first ten times. Needs root.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
use_go
cd "$ROOT"
[ "$(id -u)" = 0 ] || die "needs root, as the daemon does: sudo make test-cycles"
INFERSCOPE_CYCLES=${CYCLES:-1000} INFERSCOPE_KILLS=${KILLS:-200} go test -count=1 -v -timeout 120m \
	-run '^(TestAgentComesAndGoes|TestTargetGoesOnWithoutTheDaemon)$' ./test/e2e
