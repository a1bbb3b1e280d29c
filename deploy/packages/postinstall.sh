#!/bin/sh
# Makes the group that --allow-users admits by default, and shows systemd the units. Nothing is started: which processes
# are watched is for the administrator to say.
set -e
getent group inferscope >/dev/null || groupadd --system inferscope
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
fi
