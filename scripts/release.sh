#!/usr/bin/env bash
# Makes in dist/, without a container engine: image/, an OCI layout of one image for amd64 and arm64, and a CycloneDX
# bill of materials for each program and machine. The same commit and toolchain make the same bytes.
#   skopeo copy --all oci:dist/image docker://REGISTRY/inferscope:VERSION     brings the image into a registry
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
use_go
cd "$ROOT"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
dist=${DIST:-$ROOT/dist}
version=${VERSION:-$(git describe --tags --always --dirty 2>/dev/null || echo devel)}
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
mkdir -p "$dist"
GOARCH='' go build -o "$work/release" ./scripts/release
platforms=()
for arch in ${ARCHES:-amd64 arm64}; do
	TRIMPATH=1 GOARCH=$arch DEST=$work/$arch VERSION=$version scripts/build.sh
	platforms+=("linux/$arch=$work/$arch")
	for program in inferscope inferscoped; do
		"$work/release" sbom -version "$version" -time "$epoch" "$work/$arch/$program" \
			>"$dist/${program}_$arch.cdx.json"
	done
done
rm -rf "$dist/image"
"$work/release" image -out "$dist/image" -version "$version" -time "$epoch" "${platforms[@]}"
find "$dist/image" -type f -exec chmod 644 {} +
(cd "$dist" && find image -type f | LC_ALL=C sort | xargs sha256sum >image.sha256)
digest=$(sha256sum "$dist/image/index.json" | cut -c1-12)
say "made in $dist: image/ ($digest) and $(find "$dist" -name '*.cdx.json' | wc -l) bills of materials"
