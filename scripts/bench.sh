#!/usr/bin/env bash
# Measures what probes cost and holds it against the goals: one table, in under 3 minutes (test/bench; root).
# With "go" as argument, or with BENCH=PATTERN: the Go benchmarks of PKG that match BENCH instead. With "recordings":
# recordings written and read, exports of a million events and imports, a line each. With "cost": what each source adds.
# With "paired" and arguments of scripts/benchpaired: the benchmarks of two commits, in turns.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
use_go
cd "$ROOT"

if [ "${1:-}" = paired ]; then
	shift
	go run ./scripts/benchpaired "$@"
	exit
fi

if [ "${1:-}" = go ] || [ "${BENCH:-.}" != . ]; then
	scripts/install-deps.sh demo
	[ "$(id -u)" = 0 ] || say "not root: benchmarks that attach probes are skipped"
	go test -run '^$' -bench "${BENCH:-.}" -benchmem -p 1 -timeout 30m "${PKG:-./...}" |
		awk '!/^PASS|no test files|^ok /'
	exit
fi

if [ "${1:-}" = recordings ]; then
	go test -run '^$' -bench 'BytesPerEvent|Write$|Read$|Export|Import' -benchtime 3x -p 1 -timeout 30m \
		./internal/recording/archive ./internal/report/export ./internal/recording/importer |
		awk '/^Benchmark/ {
			sub(/^Benchmark/, "", $1); sub(/-[0-9]+$/, "", $1)
			printf "%-20s", $1
			for (i = 3; i < NF; i += 2) {
				if ($(i + 1) != "ns/op") printf "  %s %s", $i, $(i + 1)
				else printf "  %.3f s", $i / 1e9
			}
			print ""
		}'
	exit
fi

scripts/install-deps.sh demo bench
scripts/cudasim.sh
scripts/build.sh
# Everything is built before root comes in, so that no file of root's is left in a person's caches.
go build -o "$BIN/bench" ./test/bench
if [ "${1:-}" = cost ]; then
	as_root "$BIN/bench" -cost "${COST:-.}" -rounds "${ROUNDS:-25}"
	exit
fi
as_root "$BIN/bench" -daemon "$BIN/inferscoped"
