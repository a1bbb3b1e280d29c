#!/usr/bin/env bash
# Programs on the simulated CUDA that hardly get a CPU are attached to again and again, and none may be harmed
# (test/gpu/starved.py). Needs root. Ends at the first death.
#   SECONDS_LIMIT  how long at most (default: 120); ATTACHMENTS: ends after so many, and fails with fewer (default: 30);
#   PROGRAMS (default: 12, more of them hardly get as far as a window on 2 CPUs); SEED
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"
[ "$(id -u)" = 0 ] || die "needs root, as the daemon does"
[ -x build/victims/victim ] || scripts/cudasim.sh
[ -x bin/inferscoped ] || die "bin/inferscoped is missing: run make build first"
"${PYTHON:-python3}" test/gpu/starved.py --bin bin --simulated build --out build/starved --programs "${PROGRAMS:-12}" \
	--together 4 --limit "${SECONDS_LIMIT:-120}" --attachments "${ATTACHMENTS:-30}" ${SEED:+--seed "$SEED"}
