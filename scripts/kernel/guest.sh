#!/bin/bash
# The program of the virtual machine once its root is there: runs `inferscope doctor` and the compiled tests of each
# package, then turns it off.
set -u
export PATH=/usr/local/bin:/usr/bin:/usr/sbin HOME=/root LANG=C.UTF-8 INFERSCOPE_TEST_SLOW=1
# shellcheck disable=SC2317 # at the end, however that comes
off() {
	sync
	/bin/busybox poweroff -f
}
trap off EXIT

mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mkdir -p /dev/shm /dev/pts /root /usr/local/bin
mount -t tmpfs shm /dev/shm
mount -t devpts pts /dev/pts
ln -sf /proc/self/fd /dev/fd
mount -t tracefs trace /sys/kernel/tracing
mount -t debugfs debug /sys/kernel/debug
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup /sys/fs/cgroup
echo "+cpu +memory +pids" >/sys/fs/cgroup/cgroup.subtree_control
ip link set lo up 2>/dev/null || /bin/busybox ifconfig lo up
ldconfig
# Tests that build the project's programs get those that came along: there is no Go here.
cat >/usr/local/bin/go <<'GO'
#!/bin/sh
[ "$1 $2" = "build -o" ] && [ "${4#../../cmd/}" != "$4" ] && exec cp /src/bin/* "$3"
[ "$1 $2" = "build -o" ] && [ "${4##*/}" = h2server ] && exec cp /src/testdata/h2server/h2server "$3"
echo "no Go here: go $*" >&2
exit 1
GO
chmod 755 /usr/local/bin/go

cd /src || exit
echo "guest: $(uname -srm), $(nproc) processors"
env -u INFERSCOPE_TEST_SLOW NO_COLOR=1 bin/inferscope doctor || echo "guest: doctor ended with $?"
pattern=$(cat guest.tests)
while read -r p; do
	echo "guest: package $p"
	(cd "$p" && ./go.test -test.v -test.timeout 20m -test.run "$pattern") ||
		echo "guest: package $p did not end well ($?)"
done <guest.packages
dmesg | grep -E 'WARNING: |BUG: |Oops|Internal error|general protection|Call Trace' &&
	echo "guest: the kernel complained"
echo "guest: all ran"
