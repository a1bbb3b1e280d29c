package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// TestRootFollowsNoLinkOfAnother: what another user puts into a directory for everybody is replaced, and nothing is
// written where it leads.
func TestRootFollowsNoLinkOfAnother(t *testing.T) {
	needs.Root(t, "it acts as another user")
	secret, dir := filepath.Join(t.TempDir(), "shadow"), t.TempDir()
	if err := errors.Join(os.WriteFile(secret, []byte("secret"), 0o600), os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o777|os.ModeSticky)); err != nil {
		t.Fatal(err)
	}
	plant := exec.CommandContext(t.Context(), "sh", "-ec", `ln -s "$0" report.md; ln -s "$(dirname "$0")" way`, secret)
	plant.Dir = dir
	plant.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	must.Run(t, plant)
	socket := serve(t, newFakeDaemon())
	want(t, at(t, socket, "report", "-o", filepath.Join(dir, "report.md")), clierror.OK)
	if got, err := os.ReadFile(secret); err != nil || string(got) != "secret" {
		t.Errorf("root's file became %.100q, %v", got, err)
	}
	want(t, at(t, socket, "report", "-o", filepath.Join(dir, "way", "report.md")), clierror.General,
		"belongs to user 65534", "name the directory")
	want(t, at(t, socket, "record", "--for", "1ms", "-o", filepath.Join(dir, "way", "t.isc")),
		clierror.General, "belongs to user 65534")
	onlyThese(t, filepath.Dir(secret), "shadow")
}
