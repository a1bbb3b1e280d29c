package daemon

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

func TestNotify(t *testing.T) {
	for name, socket := range map[string]string{
		"path":     filepath.Join(t.TempDir(), "n"),
		"abstract": "@inferscope-test-" + strconv.Itoa(os.Getpid()),
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
			must.NoError(t, err)
			defer l.Close()
			must.NoError(t, Notify(socket, "READY=1"))
			buf := make([]byte, 100)
			n, err := l.Read(buf)
			if err != nil || string(buf[:n]) != "READY=1" {
				t.Errorf("received %q, %v", buf[:n], err)
			}
		})
	}
	if err := Notify("", "READY=1"); err != nil {
		t.Errorf("without a service manager: %v", err)
	}
	if err := Notify(filepath.Join(t.TempDir(), "nobody"), "READY=1"); err == nil {
		t.Error("nobody listens, and that is no error")
	}
}
