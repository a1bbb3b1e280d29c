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

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestLinkHolderThatCannotStart: where the system does not let the daemon start its program once more, it says what to
// do.
func TestLinkHolderThatCannotStart(t *testing.T) {
	dir := t.TempDir()
	closed := filepath.Join(dir, "closed")
	must.NoError(t, os.WriteFile(closed, []byte("#!/bin/sh\n"), 0o600))
	for _, c := range []struct {
		command, hint string
		is            error
		code          clierror.Code
	}{
		{filepath.Join(dir, "none"), "/proc", unix.ENOENT, clierror.General},
		{closed, "noexec", unix.EACCES, clierror.Permission}, // as on a file system that is mounted noexec: execve(2)
	} {
		_, err := linkHolder(zap.NewNop(), c.command)
		if !errors.Is(err, c.is) || clierror.CodeOf(err) != c.code || !strings.Contains(clierror.HintOf(err), c.hint) {
			t.Errorf("%s: %v, code %d, advice %q; want %v, code %d, and %q in it",
				c.command, err, clierror.CodeOf(err), clierror.HintOf(err), c.is, c.code, c.hint)
		}
	}
}

// TestLinkHolderFault: each cause has advice of its own.
func TestLinkHolderFault(t *testing.T) {
	for errno, hint := range map[unix.Errno]string{
		unix.EAGAIN: "pids.max", unix.EPERM: "seccomp", unix.ENOMEM: "memory",
		unix.EMFILE: "ulimit -n", unix.ENFILE: "ulimit -n", unix.E2BIG: "report it",
	} {
		err := linkHolderFault(fmt.Errorf("start: %w", errno))
		if !errors.Is(err, errno) || !strings.Contains(clierror.HintOf(err), hint) {
			t.Errorf("%v: advice %q, want %q in it", err, clierror.HintOf(err), hint)
		}
	}
}
