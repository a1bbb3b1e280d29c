#!/usr/bin/env bash
# The Go tests as one stream of events: all of them, then the packages whose
# goroutines share memory once more under the race detector (RACE=0: not that).
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
use_go
cd "$ROOT" || exit
code=0

# 12m for a package (end to end takes 5 to 6): one that hangs must show before the whole run is given up.
tests() { go test -json -count=1 -timeout 12m "$@" || code=$?; }

# What watches whole processes at full speed gets the machine for itself, after all the rest.
alone='/test/(bench|diagnosis|e2e|perf|samplerbench|torch)$'
mapfile -t beside < <(go list ./... | grep -vE "$alone")
mapfile -t last < <(go list ./... | grep -E "$alone")
tests "${beside[@]}"
tests -p 1 "${last[@]}"
if [ "${RACE:-1}" != 0 ]; then
	# -short: what is slow would only measure the detector, which needs cgo.
	CGO_ENABLED=1 tests -race -short ./internal/daemon/api ./internal/daemon ./internal/daemon/metrics ./internal/recording ./internal/capture/proc
	CGO_ENABLED=1 tests -race -run TestRecordingIsTheCallersAgain ./internal/report # all of it takes a minute
fi
exit "$code"
