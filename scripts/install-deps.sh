#!/usr/bin/env bash
# Installs what a purpose needs and is not there yet, on Debian and Ubuntu:
#   scripts/install-deps.sh demo|generate|test|containers|judges|bench|kernels-amd64|kernels-arm64...
# Where nothing is missing it looks and leaves, in milliseconds. judges are what some
# tests hold InferScope against, and are skipped without, for not every distribution has
# them: perf, AMD's HIP runtime, h2 and PyTorch for the system's Python (170 MB to fetch, 730 MB on disk, a minute).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"

missing=()
optional=()

# want PACKAGE COMMAND: asks for PACKAGE where COMMAND is not on the PATH.
want() { command -v "$2" >/dev/null 2>&1 || missing+=("$1"); }

# want_header PACKAGE HEADER: asks for PACKAGE where the C compiler does not find HEADER.
want_header() {
	echo "#include <$2>" | "${CC:-cc}" -E - >/dev/null 2>&1 || missing+=("$1")
}

# want_venv: Debian splits venv off; without ensurepip `python3 -m venv` fails half way.
want_venv() { python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || missing+=(python3-venv); }

# want_optional PACKAGE CMD...: tries for PACKAGE where CMD fails.
want_optional() {
	local package=$1
	shift
	"$@" >/dev/null 2>&1 || optional+=("$package")
}

for purpose in "$@"; do
	case $purpose in
	demo)
		want gcc gcc
		want make make
		want python3 python3
		want_header libc6-dev stdio.h
		;;
	generate)
		want clang-19 clang-19
		want llvm-19 llvm-strip-19
		want lld-19 ld.lld-19
		;;
	test)
		want shellcheck shellcheck
		want systemd systemd-analyze
		want util-linux unshare
		want unzip unzip
		want_venv
		;;
	containers)
		want containerd containerd
		want runc runc
		;;
	judges)
		want_optional linux-perf perf --version
		# Looked for, not imported: that takes seconds.
		want_optional python3-torch test -d /usr/lib/python3/dist-packages/torch
		want_optional libamdhip64-5 sh -c '/sbin/ldconfig -p | grep -q libamdhip64'
		want_optional python3-h2 test -d /usr/lib/python3/dist-packages/h2
		;;
	bench)
		want bpftrace bpftrace
		;;
	kernels-amd64 | kernels-arm64)
		want gcc gcc
		want make make
		want cpio cpio
		want kmod depmod
		want zstd zstd
		want e2fsprogs mke2fs
		if [ "$purpose" = kernels-amd64 ]; then
			want qemu-system-x86 qemu-system-x86_64
			want gcc-x86-64-linux-gnu x86_64-linux-gnu-gcc
		else
			want qemu-system-arm qemu-system-aarch64
			want gcc-aarch64-linux-gnu aarch64-linux-gnu-gcc
		fi
		[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing+=(debian-archive-keyring)
		;;
	*)
		die "install-deps.sh: unknown purpose '$purpose' (demo, generate, test, containers, judges, bench," \
			"kernels-amd64, kernels-arm64)"
		;;
	esac
done

[ "${#missing[@]}" -gt 0 ] || [ "${#optional[@]}" -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
	[ "${#missing[@]}" = 0 ] && exit 0
	die "missing: ${missing[*]}; this script installs on Debian and Ubuntu only: use your package manager"
fi

apt_install() {
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >&2
}

# Package lists may be absent (container images) or stale: refresh them only when the first try fails, and once.
refreshed=
refresh() {
	[ -z "$refreshed" ] && refreshed=yes && as_root apt-get update -q >&2
}

if [ "${#missing[@]}" -gt 0 ]; then
	mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
	say "installing with apt: ${missing[*]}"
	apt_install "${missing[@]}" || { refresh && apt_install "${missing[@]}"; } ||
		die "apt could not install ${missing[*]}; clang-19 is in Debian 12 and Ubuntu 24.04 or newer"
fi
for package in "${optional[@]}"; do
	say "installing with apt: $package"
	apt_install "$package" || { refresh && apt_install "$package"; } ||
		say "apt has no $package: tests that want it are skipped"
done
