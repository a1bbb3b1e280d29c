package e2e

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// readProc reads a file of a process's folder in /proc.
func readProc(t *testing.T, pid int, name string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	must.NoError(t, err)
	return string(text)
}

func atoi(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	must.NoError(t, err)
	return n
}

// fetch is recording over a connection of its own, for tests that ask again and again.
func (d *daemon) fetch(pid int) *recording.Recording {
	d.t.Helper()
	c, err := api.Dial(d.socket)
	must.NoError(d.t, err)
	defer c.Close()
	rec, err := c.Recording(context.Background(), uint32(pid), api.Window{})
	must.NoError(d.t, err)
	return rec
}
