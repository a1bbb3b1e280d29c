#!/bin/sh
# Stops the daemon when the package goes ("remove" of dpkg, 0 of rpm), not when it is replaced by another version.
set -e
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now inferscoped.service 'inferscoped@*.service' || true
	fi
	;;
esac
