package daemon

import (
	"fmt"
	"net"
)

// Notify reports the state of the daemon to the service manager: "READY=1", "STOPPING=1", one assignment a line
// (sd_notify(3)). socket is the value of $NOTIFY_SOCKET; if it is empty, Notify does nothing.
func Notify(socket, state string) error {
	if socket == "" {
		return nil
	}
	// A leading @ means an abstract socket, for systemd as for package net.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("telling the service manager %s: %w", state, err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("telling the service manager %s: %w", state, err)
	}
	return nil
}
