#!/bin/sh
# The first program of the virtual machine (busybox): finds the disks and goes to the real root.
b=/bin/busybox
$b mkdir -p /dev /proc /sys /root
$b mount -t devtmpfs dev /dev
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
while read -r module; do
	$b insmod "/modules/$module" || echo "guest: no module $module"
done </modules/order
tries=0
until [ -b /dev/vda ] && [ -b /dev/vdb ]; do
	$b sleep 0.1
	tries=$((tries + 1))
	[ "$tries" -lt 300 ] || break
done
if ! $b mount -t ext4 /dev/vda /root || ! $b mount -t ext4 /dev/vdb /root/src; then
	echo "guest: no disks"
	$b poweroff -f
fi
for d in dev proc sys; do $b mount -o move "/$d" "/root/$d"; done
exec $b switch_root /root /src/guest.sh
