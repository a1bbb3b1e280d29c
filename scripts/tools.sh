#!/usr/bin/env bash
# Puts development tools, at pinned versions, into bin/tools:
#   scripts/tools.sh gofumpt golangci-lint kubeconform pytools...
# Go tools are compiled by `go install`, which checks them against the checksum
# database; `pytools` is a virtual environment with hadolint and duckdb (programs
# in wheels) and the Kubernetes schemas, pinned by hash in scripts/pytools.txt.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"

KUBERNETES=1.34.0 # whose schemas the manifests are checked against

install_go_tool() { # NAME PACKAGE VERSION [TAGS]
	local stamp=$TOOLS/.$1@$3
	[ -x "$TOOLS/$1" ] && [ -e "$stamp" ] && return
	use_go
	say "building $1 $3"
	# From /: a tool must not be resolved through this project's go.mod.
	(cd / && GOFLAGS='' GOBIN=$TOOLS go install -tags "${4:-}" "$2@$3") ||
		die "could not build $2@$3: is the Go module proxy reachable?"
	rm -f "$TOOLS/.$1@"*
	touch "$stamp"
}

install_pytools() {
	local venv=$TOOLS/venv stamp
	stamp=$venv/.$(sha256sum <"$ROOT/scripts/pytools.txt" | cut -c1-16)
	[ -e "$stamp" ] && return
	say "installing hadolint, duckdb and the Kubernetes schemas into $venv"
	rm -rf "$venv"
	python3 -m venv "$venv"
	"$venv/bin/pip" install -q --disable-pip-version-check --no-deps --no-compile --require-hashes \
		-r "$ROOT/scripts/pytools.txt" ||
		die "pip could not install scripts/pytools.txt: is the Python package index reachable?"
	ln -sf venv/bin/hadolint "$TOOLS/hadolint"
	ln -sf venv/bin/duckdb "$TOOLS/duckdb"
	local schemas
	schemas=$(find "$venv" -type d -path "*/kubernetes-json-schema/v$KUBERNETES-local-strict")
	rm -rf "$TOOLS/kubernetes-schemas"
	cp -r "$schemas" "$TOOLS/kubernetes-schemas"
	# Their identifiers point to a web site: make them plain files that refer to each other.
	# shellcheck disable=SC2016 # JSON's $id, not the shell's
	sed -i -e 's#"/api/_definitions.json#"_definitions.json#g' -e 's#^  "$id":#  "$comment":#' \
		"$TOOLS"/kubernetes-schemas/*.json
	rm -rf "${schemas%/*}"
	touch "$stamp"
}

mkdir -p "$TOOLS"
for tool in "$@"; do
	case $tool in
	gofumpt) install_go_tool gofumpt mvdan.cc/gofumpt v0.12.0 ;;
	golangci-lint) install_go_tool golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint v2.15.0 ;;
	versitygw) install_go_tool versitygw github.com/versity/versitygw/cmd/versitygw v1.8.0 ;;
	nfpm) install_go_tool nfpm github.com/goreleaser/nfpm/v2/cmd/nfpm v2.45.2 ;;
	helm) install_go_tool helm helm.sh/helm/v3/cmd/helm v3.22.0 ;;
	prometheus | promtool) # without the clouds' ways to find targets: half of what would be compiled
		install_go_tool "$tool" "github.com/prometheus/prometheus/cmd/$tool" v0.316.0 remove_all_sd
		;;
	kubeconform) install_go_tool kubeconform github.com/yannh/kubeconform/cmd/kubeconform v0.8.0 ;;
	pytools) install_pytools ;;
	*) die "tools.sh: unknown tool '$tool'" ;;
	esac
done
