package daemon

import (
	"fmt"
	"net"
)

// Notify tells the service manager how the daemon is: "READY=1", "STOPPING=1",
// one assignment a line, as sd_notify(3) says. socket is the value of
// $NOTIFY_SOCKET; where it is empty nobody listens, and nothing is done.
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
