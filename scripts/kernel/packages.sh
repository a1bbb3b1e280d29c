# shellcheck shell=bash
# Sourced by test-kernel.sh: the userland and the kernel of the virtual machine, out of the distributions' archives.
# Nothing is installed here. apt checks the signatures against the keys in /usr/share/keyrings; Debian has none of
# Ubuntu's.

# What tests use beside a compiler and Python.
userland=(
	base-files base-passwd bash dash coreutils findutils grep sed mawk procps util-linux mount kmod debianutils netbase
	busybox-static libc-bin
	gcc libc6-dev make binutils python3 python3-venv strace xz-utils tar gzip unzip
)

# archive FOLDER LINE...: makes an apt of its own in FOLDER that knows only these sources, and fetches their lists.
archive() {
	local dir=$1
	shift
	mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial" "$dir/parts"
	: >"$dir/status"
	printf 'deb %s\n' "$@" >"$dir/sources.list"
	if [[ $1 == *ubuntu* ]] && [ ! -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ]; then
		say "no keys of Ubuntu's here: its kernel is taken unverified, and runs in the virtual machine only"
		sed -i 's/^deb /deb [trusted=yes] /' "$dir/sources.list"
	fi
	cat >"$dir/apt.conf" <<-CONF
		Dir::Etc "$dir"; Dir::Etc::sourceparts "parts"; Dir::Etc::parts "parts"; Dir::Etc::preferencesparts "parts";
		Dir::Etc::trustedparts "/usr/share/keyrings";
		Dir::State "$dir"; Dir::State::status "$dir/status"; Dir::Cache "$dir/cache";
		APT::Architecture "$ARCH"; APT::Architectures "$ARCH";
		APT::Install-Recommends "false"; APT::Sandbox::User "root";
		Acquire::Languages "none";
	CONF
	apt_of "$dir" apt-get update -q >&2 ||
		die "apt could not read $*: is the archive reachable, are its keys in /usr/share/keyrings" \
			"(package debian-archive-keyring)?"
}

# apt_of FOLDER CMD...: an apt command that sees only the apt of FOLDER.
apt_of() { APT_CONFIG=$1/apt.conf "${@:2}"; }

# image FOLDER FILE: a file system with what is in FOLDER, and as much room again.
image() {
	local megabytes
	megabytes=$(du -sm "$1" | cut -f 1)
	rm -f "$2"
	mke2fs -q -F -t ext4 -m 0 -E root_owner=0:0 -d "$1" "$2" $((megabytes * 3 / 2 + 1024))M
}

# root_files makes the userland, once: root/ and root.img in the cache. No script of a package runs; what the tests need
# of those is done here.
root_files() {
	local dir=$CACHE/$ARCH root deb
	root=$dir/root
	[ ! -e "$dir/root.img" ] || return 0
	archive "$dir/apt" "http://deb.debian.org/debian bookworm main"
	apt_of "$dir/apt" apt-get install --download-only -y -q "${userland[@]}" >&2 ||
		die "apt could not fetch the userland"
	rm -rf "$root"
	mkdir -p "$root"/usr/{bin,sbin,lib,lib64} "$root"/{dev,proc,sys,tmp,run,src}
	for deb in bin sbin lib lib64; do ln -s "usr/$deb" "$root/$deb"; done
	for deb in "$dir"/apt/cache/archives/*.deb; do
		dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink --no-same-owner -C "$root"
	done
	ln -sf dash "$root/usr/bin/sh"
	ln -sf gcc "$root/usr/bin/cc"
	ln -sf mawk "$root/usr/bin/awk"
	cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
	cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
	image "$root" "$dir/root.img.new"
	mv "$dir/root.img.new" "$dir/root.img"
}

# kernel_files unpacks the kernel, once: KERNEL_FILES is where it lies, RELEASE what uname -r will say.
kernel_files() {
	local dir=$CACHE/$ARCH/linux-${KERNEL//[^0-9A-Za-z._-]/_} deb debs=()
	KERNEL_FILES=$dir/files
	if [ ! -e "$dir/complete" ]; then
		rm -rf "$dir"
		mkdir -p "$KERNEL_FILES"
		case $KERNEL in
		*.deb*) IFS=, read -r -a debs <<<"$KERNEL" ;;
		*)
			fetch_kernel "$dir"
			debs=("$dir"/*.deb)
			;;
		esac
		for deb in "${debs[@]}"; do dpkg-deb -x "$deb" "$KERNEL_FILES"; done
		[ -e "$KERNEL_FILES/lib" ] || ln -s usr/lib "$KERNEL_FILES/lib" # where Debian 13 has the modules
		rm -f "$dir"/*.deb
		touch "$dir/complete"
	fi
	RELEASE=$(basename "$KERNEL_FILES"/boot/vmlinuz-*)
	RELEASE=${RELEASE#vmlinuz-}
}

# dependencies FOLDER PACKAGE PREFIX: what PACKAGE depends on whose name is PREFIX and a release.
dependencies() {
	apt_of "$1/apt" apt-cache depends "$2" | sed -n "s/^ *Depends: \($3-[0-9].*\)/\1/p"
}

# fetch_kernel FOLDER: the newest build of the release that carries KERNEL.
fetch_kernel() {
	local dir=$1 meta=linux-image-$ARCH names
	local debian=http://deb.debian.org/debian ubuntu=http://archive.ubuntu.com/ubuntu
	case $KERNEL in
	5.10) archive "$dir/apt" "$debian bullseye main" ;;
	6.1) archive "$dir/apt" "$debian bookworm main" ;;
	6.12) archive "$dir/apt" "$debian trixie main" ;;
	5.15) archive "$dir/apt" "$ubuntu jammy main" "$ubuntu jammy-updates main" && meta=linux-image-generic ;;
	6.8) archive "$dir/apt" "$ubuntu noble main" "$ubuntu noble-updates main" && meta=linux-image-generic ;;
	*) die "kernel $KERNEL is not known here: 5.10, 5.15, 6.1, 6.8, 6.12, or .deb files" ;;
	esac
	mapfile -t names < <(dependencies "$dir" "$meta" linux-image)
	[ "${#names[@]}" -gt 0 ] || die "no $meta for $ARCH in that release"
	# Ubuntu has the modules apart from the image.
	mapfile -t -O 1 names < <(dependencies "$dir" "${names[0]}" linux-modules)
	(cd "$dir" && apt_of "$dir/apt" apt-get download -q "${names[@]}") >&2 || die "apt could not fetch ${names[*]}"
	rm -rf "$dir/apt"
}
