package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/fault"
)

// TestKeeperThatCannotStart: where the system does not let the daemon start its program once more, it says what to do.
func TestKeeperThatCannotStart(t *testing.T) {
	dir := t.TempDir()
	closed := filepath.Join(dir, "closed")
	if err := os.WriteFile(closed, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		command, hint string
		is            error
		code          fault.Code
	}{
		{filepath.Join(dir, "none"), "/proc", unix.ENOENT, fault.General},
		{closed, "noexec", unix.EACCES, fault.Permission}, // as on a file system that is mounted noexec: execve(2)
	} {
		_, err := keeper(zap.NewNop(), c.command)
		if !errors.Is(err, c.is) || fault.CodeOf(err) != c.code || !strings.Contains(fault.HintOf(err), c.hint) {
			t.Errorf("%s: %v, code %d, advice %q; want %v, code %d, and %q in it", c.command, err, fault.CodeOf(err), fault.HintOf(err), c.is, c.code, c.hint)
		}
	}
}

// TestKeeperFault: each cause has advice of its own.
func TestKeeperFault(t *testing.T) {
	for errno, hint := range map[unix.Errno]string{
		unix.EAGAIN: "pids.max", unix.EPERM: "seccomp", unix.ENOMEM: "memory", unix.EMFILE: "ulimit -n", unix.ENFILE: "ulimit -n", unix.E2BIG: "report it",
	} {
		err := keeperFault(fmt.Errorf("start: %w", errno))
		if !errors.Is(err, errno) || !strings.Contains(fault.HintOf(err), hint) {
			t.Errorf("%v: advice %q, want %q in it", err, fault.HintOf(err), hint)
		}
	}
}
