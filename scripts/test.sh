#!/usr/bin/env bash
# Everything that can be checked on this machine, and a count at the end.
# Tests that need root run where this runs as root. With CI set, a test that is
# skipped for want of root or of a tool that this script installs is a failure.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
steps=$work/steps
: >"$steps"

# step NAME CMD...: runs a check that is no Go test and notes how it went.
step() {
	local name=$1 code=0 began=$SECONDS how
	shift
	"$@" >"$work/$name.log" 2>&1 || code=$?
	case $code in
	0) how="pass $name" ;;
	77) how="skip $name: $(tail -n 1 "$work/$name.log")" ;;
	*)
		how="fail $name"
		cat "$work/$name.log"
		;;
	esac
	echo "$how" >>"$steps"
	printf '%-4s %-60s %5ds\n' "${how%% *}" "$name" $((SECONDS - began))
}

# One way to compile for everything below, so that nothing is compiled twice.
export CGO_ENABLED=0 TRIMPATH=0

use_go
scripts/install-deps.sh demo generate test
[ "$(id -u)" != 0 ] || scripts/install-deps.sh judges # for tests that need root
scripts/tools.sh gofumpt kubeconform pytools

step build scripts/build.sh
step build-arm64 env GOARCH=arm64 go build ./...
step cudasim scripts/cudasim.sh
# These wait for a package index most of the time: beside what follows, up to the Go tests.
step python-install python3 python/tests/test_install.py &
[ -z "${CI:-}" ] || step judges scripts/test-judges.sh &
[ -z "${CI:-}" ] || step browser-driver scripts/browser-driver.sh &
step check-generate scripts/generate.sh --check
step check-web scripts/web.sh --check
step python python3 python/tests/test_scope.py
step python-gpu-checks python3 test/gpu/twins_test.py
step python-gpu-steps python3 test/gpu/steps_test.py
if [ "$(id -u)" = 0 ]; then step starved scripts/test-starved.sh; fi
step gofumpt scripts/lint.sh gofumpt
step vet scripts/lint.sh vet
step shellcheck scripts/lint.sh shellcheck
[ "${LINT:-1}" = 0 ] || step golangci-lint scripts/lint.sh golangci-lint
wait

forbid="needs tool"
[ "$(id -u)" != 0 ] || forbid="$forbid,needs root"
[ -n "${CI:-}" ] || forbid=

go build -o "$work/testcount" ./scripts/testcount
# A test that fails on a busy machine and passes twice by itself is listed as unsteady.
"$work/testcount" -steps "$steps" -forbid-skips "$forbid" -rerun 2 scripts/gotest.sh
