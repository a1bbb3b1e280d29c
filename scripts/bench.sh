#!/usr/bin/env bash
# What watching costs on this machine, as one table (test/bench), which needs root.
# With "go" as argument: the Go benchmarks of PKG that match BENCH instead.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
use_go
cd "$ROOT"

if [ "${1:-}" = go ]; then
	scripts/install-deps.sh demo
	[ "$(id -u)" = 0 ] || say "not root: benchmarks that attach probes are skipped"
	go test -run '^$' -bench "${BENCH:-.}" -benchmem -p 1 -timeout 30m "${PKG:-./...}" | awk '!/^PASS|no test files|^ok /'
	exit
fi
[ "$(id -u)" = 0 ] || die "attaching probes needs root: sudo make bench"
scripts/install-deps.sh demo bench
scripts/cudasim.sh
exec go run ./test/bench
