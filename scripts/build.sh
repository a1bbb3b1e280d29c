#!/usr/bin/env bash
# Builds bin/inferscoped and bin/inferscope: static, reproducible for one commit and one toolchain.
# VERSION overrides what git says; GOARCH builds for another machine (amd64, arm64);
# DEST is another folder than bin; TRIMPATH=0 leaves paths in, and so shares compiled packages with tests.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
use_go
cd "$ROOT"

version=${VERSION:-$(git describe --tags --always --dirty 2>/dev/null || echo devel)}
export CGO_ENABLED=0
trim=-trimpath
[ "${TRIMPATH:-1}" != 0 ] || trim=
go build ${trim:+"$trim"} -buildvcs=false \
	-ldflags "-s -w -X github.com/inferscope/inferscope/internal/format/version.version=$version" \
	-o "${DEST:-$BIN}/" ./cmd/inferscoped ./cmd/inferscope
say "built inferscoped and inferscope for $(go env GOARCH) in ${DEST:-bin}, version $version"
