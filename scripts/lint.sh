#!/usr/bin/env bash
# Everything that reads the code without running it. One check by name, or all:
#   scripts/lint.sh [gofumpt|vet|golangci-lint|shellcheck]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
use_go
cd "$ROOT"

gofumpt_check() {
	"$ROOT/scripts/tools.sh" gofumpt
	local bad
	bad=$(gofumpt -l .)
	[ -z "$bad" ] || die "not formatted with gofumpt ('make fmt' mends it):
$bad"
}
vet_check() { go vet ./...; }
golangci_lint_check() {
	"$ROOT/scripts/tools.sh" golangci-lint
	golangci-lint run ./...
}
shellcheck_check() { shellcheck -x -P SCRIPTDIR scripts/*.sh scripts/kernel/*.sh .ci/run; }

for check in "${@:-gofumpt vet golangci-lint shellcheck}"; do
	# shellcheck disable=SC2086 # the default is a list
	for c in $check; do
		"${c//-/_}_check"
	done
done
