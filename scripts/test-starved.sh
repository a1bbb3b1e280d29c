#!/usr/bin/env bash
# Programs on the simulated CUDA that hardly get a CPU are attached to again and again, and none may be harmed
# (test/gpu/starved.py). Needs root.
#   SECONDS_LIMIT  how long (default: 60; some 100 attachments on two CPUs); LEAST: attachments that there must be
#   (default: 10); SEED
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"
[ "$(id -u)" = 0 ] || die "needs root, as the daemon does"
[ -x build/victims/victim ] || scripts/cudasim.sh
[ -x bin/inferscoped ] || die "bin/inferscoped is missing: run make build first"
"${PYTHON:-python3}" test/gpu/starved.py --bin bin --simulated build --out build/starved --limit "${SECONDS_LIMIT:-60}" --least "${LEAST:-10}" ${SEED:+--seed "$SEED"}
