package e2e

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/recording"
)

// readProc reads a file of a process's folder in /proc.
func readProc(t *testing.T, pid int, name string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func atoi(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// fetch is recording over a connection of its own, for tests that ask again and again.
func (d *daemon) fetch(pid int) *recording.Recording {
	d.t.Helper()
	c, err := api.Dial(d.socket)
	if err != nil {
		d.t.Fatal(err)
	}
	defer c.Close()
	rec, err := c.Recording(context.Background(), uint32(pid), api.Window{})
	if err != nil {
		d.t.Fatal(err)
	}
	return rec
}
