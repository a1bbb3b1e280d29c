#!/usr/bin/env bash
# The Go tests as one stream of events, without those that take long (-short, needs.Long). "gotest.sh all"
# has each of them, adds the packages that hold InferScope against other tools or measure it, and then those whose
# goroutines share memory once more under the race detector (RACE=0: not that).
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
use_go
cd "$ROOT" || exit
code=0

# 40m for a package (end to end takes 12 to 20): one that hangs must show before the whole run is given up.
tests() { go test -json -count=1 -timeout 40m "$@" || code=$?; }

# What watches whole processes at full speed gets the machine for itself, after all the rest.
alone='/test/(bench|container|diagnosis|e2e|perf|samplerbench|torch)$'
heavy='/test/(bench|browser|container|diagnosis|judges|perf|samplerbench|torch)$'
short=(-short)
[ "${1:-}" != all ] || { heavy='^$' && short=(); }
mapfile -t beside < <(go list ./... | grep -vE "$alone" | grep -vE "$heavy")
mapfile -t last < <(go list ./... | grep -E "$alone" | grep -vE "$heavy")
tests "${short[@]}" "${beside[@]}"
# End-to-end tests wait most of the time, and those that are parallel hold at any pace.
tests "${short[@]}" ${short:+-parallel 4} -p 1 "${last[@]}"
if [ "${1:-}" = all ] && [ "${RACE:-1}" != 0 ]; then
	# -short: what is slow would only measure the detector, which needs cgo.
	CGO_ENABLED=1 tests -race -short ./internal/daemon/api ./internal/daemon ./internal/daemon/metrics \
		./internal/recording ./internal/capture/proc
	CGO_ENABLED=1 tests -race -run TestRecordingIsTheCallersAgain ./internal/report # all of it takes a minute
fi
exit "$code"
