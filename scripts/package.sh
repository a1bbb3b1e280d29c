#!/usr/bin/env bash
# Makes dist/: deb and rpm packages of GOARCH (default: this machine's) with units, man pages and completions, and
# SHA256SUMS. VERSION overrides what git says. The same commit and toolchain make the same bytes.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
use_go
cd "$ROOT"
scripts/tools.sh nfpm

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
dist=${DIST:-$ROOT/dist}
ARCH=${GOARCH:-$(go env GOARCH)}
version=${VERSION:-$(git describe --tags --always --dirty 2>/dev/null || echo devel)}
# Packages want a number first: a version without a tag is 0.0.0 with what git says behind it.
PACKAGE_VERSION=${version#v}
[[ $PACKAGE_VERSION =~ ^[0-9]+\.[0-9]+ ]] || PACKAGE_VERSION="0.0.0~${PACKAGE_VERSION//-/.}"
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
STAGE=$work
export ARCH PACKAGE_VERSION SOURCE_DATE_EPOCH STAGE

export CGO_ENABLED=0
GOARCH=$ARCH go build -trimpath -buildvcs=false \
	-ldflags "-s -w -X github.com/inferscope/inferscope/internal/format/version.version=$version" \
	-o "$work/" ./cmd/inferscoped ./cmd/inferscope

# Man pages and completions are the same on every machine: programs of this one write them.
mkdir -p "$work/man" "$work/completions" "$work/systemd" "$work/tools" "$dist"
GOARCH='' go build -tags man -o "$work/tools/" ./cmd/inferscope ./cmd/inferscoped
"$work/tools/inferscope" __man "$work/man"
"$work/tools/inferscoped" __man "$work/man"
gzip -9n "$work"/man/*.1
for shell in bash zsh fish; do "$work/tools/inferscope" completion "$shell" >"$work/completions/inferscope.$shell"; done
for unit in deploy/systemd/*.service; do sed 's#/usr/local/bin/#/usr/bin/#' "$unit" >"$work/systemd/${unit##*/}"; done
find "$work" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

for packager in deb rpm; do
	said=$("$TOOLS/nfpm" package --config deploy/packages/nfpm.yaml --packager $packager --target "$dist/" 2>&1) ||
		die "nfpm: $said"
done
(cd "$dist" && sha256sum ./*.deb ./*.rpm >SHA256SUMS)
say "made in $dist:"
ls -l "$dist" >&2
