package archive_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// TestASwappedFolderLeadsNowhere: whose directory a recording is written into cannot lead root's client elsewhere by
// a link in the place of its folder, or of a folder in it.
func TestASwappedFolderLeadsNowhere(t *testing.T) {
	needs.Root(t, "it acts as another user")
	const attacker = 65534
	for name, script := range map[string]string{
		"the folder": `mv t.isc gone; ln -s "$0" t.isc`,
		"a table":    `mv t.isc gone; mkdir t.isc; ln -s "$0" t.isc/kernels; ln -s "$0" t.isc/calls; ln -s "$0"/manifest.json t.isc/manifest.json.tmp`,
	} {
		t.Run(name, func(t *testing.T) {
			private, dir := t.TempDir(), t.TempDir()
			must.NoError(t, errors.Join(
				os.Chmod(private, 0o700), os.Chmod(filepath.Dir(dir), 0o755), os.Chown(dir, attacker, attacker),
			))
			place := filepath.Join(dir, "t.isc")
			w, err := archive.Create(place, false)
			must.NoError(t, err)
			swap := exec.CommandContext(t.Context(), "sh", "-ec", script, private)
			swap.Dir = dir
			swap.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: attacker, Gid: attacker}}
			must.Run(t, swap)
			must.NoError(t, errors.Join(w.Append(random(rand.New(rand.NewPCG(5, 5)), 500)), w.Finish(nil)))
			if left, err := os.ReadDir(private); err != nil || len(left) > 0 {
				t.Errorf("root's folder has %v, %v", left, err)
			}
			if rec, err := archive.Read(filepath.Join(dir, "gone"), archive.DefaultLimits()); err != nil ||
				len(rec.Events) == 0 {
				t.Errorf("the recording is not where its folder went: %v", err)
			}
		})
	}
}
