#!/usr/bin/env bash
# The tests, and a count at the end. Tests that need root run where this runs as root.
#   test.sh      what needs a compiler, Python and clang: builds, checks of generated files, unit and end-to-end tests
#                but those that take long (needs.Long): each feature is used by one that does not
#   test.sh all  every test, also golangci-lint, the race detector, benchmarks' own tests, and other tools as judges,
#                with PyTorch, perf and a browser: it installs some 200 packages (1 GB) and takes four times as long
# With CI set, a test that is skipped for want of root or of a tool that this script installs is a failure.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$ROOT"
all=
case ${1:-} in
"") ;;
all) all=1 ;;
*) die "usage: test.sh [all]" ;;
esac

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
if [ -n "$all" ]; then
	say "test-all uses PyTorch, perf, a browser and a dozen Python packages: it installs what is missing of them"
	[ "$(id -u)" != 0 ] || scripts/install-deps.sh containers judges # for tests that need root
	scripts/tools.sh versitygw helm nfpm promtool prometheus
fi
scripts/tools.sh gofumpt kubeconform pytools

step build scripts/build.sh
[ -z "$all" ] || step build-arm64 env GOARCH=arm64 go build ./...
step cudasim scripts/cudasim.sh
# These wait for a package index most of the time, or use one CPU: beside what follows, up to the Go tests.
step python-install python3 python/tests/test_install.py &
step check-generate scripts/generate.sh --check &
[ -n "$all" ] || [ "$(id -u)" != 0 ] || step upload-server scripts/tools.sh versitygw &
[ -z "$all" ] || step judges scripts/test-judges.sh &
[ -z "$all" ] || step browser-driver scripts/browser-driver.sh &
# Without these two servers their tests are skipped.
[ -z "$all" ] || step servers bash -c 'timeout 40m scripts/test-torch.sh prepare 2>&1 || exit 77' &
step check-web scripts/web.sh --check
step python python3 python/tests/test_scope.py
step python-gpu-checks python3 test/gpu/twins_test.py
step python-gpu-steps python3 test/gpu/steps_test.py
step python-gpu-pairs python3 test/gpu/pairs_test.py
step gofumpt scripts/lint.sh gofumpt
step vet scripts/lint.sh vet
step shellcheck scripts/lint.sh shellcheck
[ -z "$all" ] || [ "${LINT:-1}" = 0 ] || step golangci-lint scripts/lint.sh golangci-lint
wait
# Alone: its own programs leave hardly any CPU.
if [ -n "$all" ] && [ "$(id -u)" = 0 ]; then step starved scripts/test-starved.sh; fi

forbid=
if [ -n "${CI:-}" ]; then
	[ -z "$all" ] || forbid="needs tool"
	[ "$(id -u)" != 0 ] || forbid="$forbid,needs root"
fi

go build -o "$work/testcount" ./scripts/testcount
# A test that fails on a busy machine and passes twice by itself is listed as unsteady.
"$work/testcount" -steps "$steps" -forbid-skips "$forbid" -rerun 2 scripts/gotest.sh ${all:+all}
