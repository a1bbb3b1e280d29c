#!/usr/bin/env bash
# Runs tests of this project as root on another kernel, in a virtual machine (QEMU), and counts them:
#   scripts/test-kernel.sh KERNEL [ARCH [PACKAGES [TESTS]]]
#     KERNEL    5.10, 5.15, 6.1, 6.8, 6.12 (of Debian's and Ubuntu's releases) or kernel packages, comma-separated .deb
#               files
#     ARCH      amd64 or arm64 (default: this machine's); Ubuntu's kernels for amd64 only
#     PACKAGES  folders, as "internal/capture/uprobe internal/capture/gpu/inject" (default: all that touch the kernel or
#               another process)
#     TESTS     a pattern as of go test -run (default: all)
# The machine has the kernel, Debian 12's userland with a compiler and Python, this tree with its tests compiled here,
# 2 processors and 4 GB. Without KVM for ARCH it is emulated: slow (a test takes 5 to 20 times as long), and without
# hardware counters. Downloads are kept in INFERSCOPE_KERNELS_DIR (default: inferscope/kernels in the user's cache
# folder). Settings:
#   MEMORY, CPUS of the machine; ACCEL=tcg against KVM; TIMEOUT of the whole (default 60m); LOG keeps the output there
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
. "$ROOT/scripts/kernel/packages.sh"
use_go
export LC_ALL=C

KERNEL=${1:?which kernel? see the head of this script}
ARCH=${2:-$(go env GOARCH)}
touching=(
	agent cmd/inferscoped test/e2e internal/{analysis/threads,daemon,testkit/cudasim}
	internal/capture/{annotate,clock,cudaapi,feature,gpu,gpu/inject,proc,profile,request,ring,sched,sched/pressure}
	internal/capture/{symbol,uprobe}
)
read -r -a packages <<<"${3:-${touching[*]}}" # folders
TESTS=${4:-.}
CACHE=${INFERSCOPE_KERNELS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/inferscope/kernels}

case $ARCH in
amd64) TRIPLE=x86_64-linux-gnu QEMU=(qemu-system-x86_64 -machine q35) CPU=max CONSOLE=ttyS0 ;;
arm64) TRIPLE=aarch64-linux-gnu QEMU=(qemu-system-aarch64 -machine virt) CPU=max,pauth-impdef=on CONSOLE=ttyAMA0 ;;
*) die "unknown architecture $ARCH: amd64 or arm64" ;;
esac

scripts/install-deps.sh "kernels-$ARCH"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$CACHE"

# compile puts the tree into $work/tree with the tests, the programs and what the tests would build with make.
compile() {
	local tree=$work/tree p
	mkdir -p "$tree/bin"
	(cd "$ROOT" && git ls-files -z --cached --others --exclude-standard | tar -c --null -T - --ignore-failed-read) |
		tar -x -C "$tree"
	export GOOS=linux GOARCH=$ARCH CGO_ENABLED=0
	(cd "$ROOT" && go build -o "$tree/bin/" ./cmd/...)
	(cd "$ROOT" && go build -o "$tree/testdata/h2server/" ./testdata/h2server)
	for p in "${packages[@]}"; do
		[ -d "$ROOT/$p" ] || die "no folder $p"
		(cd "$ROOT/$p" && go test -c -o "$tree/$p/go.test" .)
	done
	# The machine's own headers and libraries, for this distribution's C library may be newer.
	for p in cudasim victims injectees waiters scenarios; do
		make -s -j "$(nproc)" -C "$tree/testdata/$p" CC="$TRIPLE-gcc --sysroot=$CACHE/$ARCH/root"
	done
	cp "$ROOT/scripts/kernel/guest.sh" "$tree/guest.sh"
	printf '%s\n' "${packages[@]}" >"$tree/guest.packages"
	printf '%s\n' "$TESTS" >"$tree/guest.tests"
	image "$tree" "$work/tree.img"
}

# first_files makes the initial file system: busybox, the modules that lead to the disk, and the way to the real root.
first_files() {
	local files=$work/first module path
	mkdir -p "$files/bin" "$files/modules"
	cp "$CACHE/$ARCH/root/bin/busybox" "$files/bin/"
	ln -s busybox "$files/bin/sh"
	cp "$ROOT/scripts/kernel/init.sh" "$files/init"
	depmod -b "$KERNEL_FILES" "$RELEASE"
	for module in virtio_pci virtio_blk crc32c_generic ext4; do
		# It fails where the module is built in, or not of this kernel.
		modprobe -d "$KERNEL_FILES" -S "$RELEASE" --show-depends "$module" 2>/dev/null || true
	done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$work/modules"
	while read -r path; do
		module=${path##*/}
		case $path in
		*.xz) xz -dc "$path" >"$files/modules/${module%.xz}" ;;
		*.zst) zstd -qdc "$path" >"$files/modules/${module%.zst}" ;;
		*) cp "$path" "$files/modules/" ;;
		esac
		echo "${module%.[xz]*}" >>"$files/modules/order"
	done <"$work/modules"
	: >>"$files/modules/order"
	(cd "$files" && find . | cpio -o -H newc -R 0:0 --quiet) >"$work/first.cpio"
}

# accelerated says whether KVM can run this architecture here: a processor that offers it, and the device.
accelerated() {
	[ "${ACCEL:-kvm}" != tcg ] && [ -w /dev/kvm ] && [ "$(GOARCH='' go env GOHOSTARCH)" = "$ARCH" ] || return
	[ "$ARCH" != amd64 ] || grep -qwE 'vmx|svm' /proc/cpuinfo
}

# boot runs the machine. Processors that are emulated take turns in one thread: with a thread each, QEMU 7.2 can go on
# executing a breakpoint (int3) that another processor has replaced meanwhile, as Linux does in static branches each
# time that a tracepoint is turned on or off. The processor then traps for ever, and the machine hangs. On a busy host
# an emulated timer can come so late that the kernel takes it for broken: it is told not to look.
boot() {
	local how=(-accel "tcg,thread=single" -cpu "$CPU")
	[ "$ARCH" != amd64 ] || APPEND="no_timer_check ${APPEND:-}"
	if accelerated; then
		how=(-accel kvm -cpu host)
	else
		say "no KVM for $ARCH here: emulated, and slow"
	fi
	timeout --foreground "${TIMEOUT:-60m}" "${QEMU[@]}" "${how[@]}" -smp "${CPUS:-2}" -m "${MEMORY:-4096}" \
		-nodefaults -nographic -no-reboot -serial stdio -net none \
		-kernel "$KERNEL_FILES/boot/vmlinuz-$RELEASE" -initrd "$work/first.cpio" \
		-append "console=$CONSOLE quiet loglevel=4 panic=-1 ${APPEND:-}" \
		-drive "file=$CACHE/$ARCH/root.img,if=virtio,format=raw,snapshot=on" \
		-drive "file=$work/tree.img,if=virtio,format=raw"
}

root_files
kernel_files
compile
first_files
log=${LOG:-$work/log}
boot </dev/null | sed -u 's|\r||g' | tee "$log" |
	grep --line-buffered -vE '^(=== |    --- (PASS|SKIP)|--- (PASS|SKIP)|PASS$)' || true

awk -v kernel="$RELEASE" -v arch="$ARCH" '
	/^--- PASS/ { passed++ } /^--- FAIL/ { failed++; names = names " " $3 } /^--- SKIP/ { skipped++ }
	/^guest: package .* did not end well/ { broken++ }
	/^guest: the kernel complained/ { complaints++ }
	/^guest: all ran/ { ended = 1 }
	END {
		printf "kernel %s %s: %d passed, %d failed, %d skipped%s\n", kernel, arch, passed, failed, skipped,
			complaints ? ", and the kernel complained" : ""
		if (names) print "failed:" names
		if (!ended) print "the machine stopped before all had run"
		exit failed || broken || complaints || !ended || !passed
	}' "$log"
