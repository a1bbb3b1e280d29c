#!/usr/bin/env bash
# The tests on one kernel after the other (scripts/test-kernel.sh), with a line for each at the end. Settings:
#   KERNELS  KERNEL:ARCH... (default: "5.15:amd64 6.1:amd64 6.12:amd64 6.12:arm64")
#   PKG      the packages' folders (default: those of test-kernel.sh)
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
code=0
mkdir -p "$ROOT/build/kernels"
read -r -a kernels <<<"${KERNELS:-5.15:amd64 6.1:amd64 6.12:amd64 6.12:arm64}"
[ "${PKG:-./...}" != ./... ] || PKG=
for k in "${kernels[@]}"; do
	log=$ROOT/build/kernels/${k/:/-}
	LOG=$log.log "$ROOT/scripts/test-kernel.sh" "${k%:*}" "${k#*:}" "$PKG" | tee "$log.short" || code=1
done
for k in "${kernels[@]}"; do
	grep -hE '^(kernel .* passed|failed:|the machine stopped)' "$ROOT/build/kernels/${k/:/-}.short" ||
		echo "$k: did not start"
done
exit "$code"
