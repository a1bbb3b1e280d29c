package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// theirs makes the folder where the client runs nobody's, and returns a folder of root's with a file that nobody else
// may have.
func (r *runner) theirs() (private, secret string) {
	r.t.Helper()
	const nobody = 65534
	for _, dir := range []string{filepath.Dir(r.dir), filepath.Dir(program(r.t, "inferscope"))} {
		_ = os.Chmod(dir, 0o755) //nolint:gosec // a test's own
	}
	private = r.t.TempDir()
	secret = filepath.Join(private, "shadow")
	must.NoError(r.t, errors.Join(
		os.Chown(r.dir, nobody, nobody), os.Chmod(private, 0o700), os.WriteFile(secret, []byte("secret"), 0o600),
	))
	return private, secret
}

func untouched(t *testing.T, private, secret string) {
	t.Helper()
	text, err := os.ReadFile(secret)
	info, lerr := os.Lstat(secret)
	if err != nil || lerr != nil || string(text) != "secret" || info.Mode() != 0o600 ||
		info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("root's file holds %.100q and is %+v: %v, %v", text, info, err, lerr)
	}
	if left, err := os.ReadDir(private); err != nil || len(left) != 1 {
		t.Errorf("root's folder has %v, %v", left, err)
	}
}

// TestRunGivesNoFileAway: a program that root runs as somebody else cannot have root's files by what it makes of the
// place of its report.
func TestRunGivesNoFileAway(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	t.Run("a link at its name", func(t *testing.T) {
		r := newRunner(t)
		private, secret := r.theirs()
		f := r.run("--user", "nobody", "--", "/bin/sh", "-c", "ln -s "+secret+" report.md")
		f.says(t, 0, "wrote ./report.md")
		untouched(t, private, secret)
		info, err := os.Lstat(filepath.Join(r.dir, "report.md"))
		if err != nil || !info.Mode().IsRegular() || info.Sys().(*syscall.Stat_t).Uid != 65534 {
			t.Errorf("the report is %+v, %v", info, err)
		}
	})
	t.Run("a link at its folder", func(t *testing.T) {
		r := newRunner(t)
		private, secret := r.theirs()
		out := filepath.Join(r.dir, "out")
		must.NoError(t, errors.Join(os.Mkdir(out, 0o755), os.Chown(out, 65534, 65534)))
		f := r.run("--user", "nobody", "--report", "out/shadow", "--format", "text", "--", "/bin/sh", "-c",
			"mv out gone; ln -s "+private+" out")
		f.says(t, 0)
		untouched(t, private, secret)
		f.report(t, "gone/shadow", "sh")
	})
	t.Run("the rights of the user", func(t *testing.T) {
		r := newRunner(t)
		private, secret := r.theirs()
		f := r.run("--user", "nobody", "--report", filepath.Join(private, "report.md"), "--", "/bin/true")
		f.says(t, 1, "permission denied", "the recording is kept in")
		untouched(t, private, secret)
	})
	t.Run("a path in a file of theirs", func(t *testing.T) {
		r := newRunner(t)
		private, secret := r.theirs()
		path := r.write(".inferscope.yaml", "report_path: "+filepath.Join(private, "shadow")+"\n")
		must.NoError(t, os.Chown(path, 65534, 65534))
		r.env = append(r.env, "SUDO_UID=65534")
		f := r.run("/bin/true")
		f.says(t, 0, "report_path is ignored, because it belongs to user 65534", "wrote ./report.md")
		untouched(t, private, secret)
	})
}
