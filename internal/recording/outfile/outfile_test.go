package outfile_test

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/recording/outfile"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

const (
	attacker = 65534
	victim   = 1000
)

// as runs a shell script as an unprivileged user.
func as(t *testing.T, uid uint32, dir, script string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", script)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, NoSetGroups: false}}
	must.Run(t, cmd)
}

// open returns a directory of a mode that everybody can reach.
func open(t *testing.T, mode os.FileMode, uid int) string {
	t.Helper()
	dir := t.TempDir()
	for up := dir; up != os.TempDir() && up != "/"; up = filepath.Dir(up) {
		must.NoError(t, os.Chmod(up, 0o755))
	}
	own := filepath.Join(dir, "d")
	must.NoError(t, errors.Join(os.Mkdir(own, 0o700), os.Chown(own, uid, uid), os.Chmod(own, mode)))
	return own
}

// secret makes a file of root's that nobody else may read or write.
func secret(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shadow")
	must.NoError(t, os.WriteFile(path, []byte("secret"), 0o600))
	return path
}

func untouched(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil || string(text) != "secret" {
		t.Errorf("root's file is %q, %v", text, err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 || info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("root's file is %v, %v", info, err)
	}
}

func write(path, text string, by *syscall.Credential) error {
	p, err := outfile.Open(path, by)
	if err != nil {
		return err
	}
	defer p.Close()
	return put(p, text)
}

func put(p *outfile.Place, text string) error {
	f, err := p.Create()
	if err != nil {
		return err
	}
	defer f.Discard()
	if _, err := io.WriteString(f, text); err != nil {
		return err
	}
	return f.Commit()
}

func holds(t *testing.T, path, text string, uid uint32) {
	t.Helper()
	got, err := os.ReadFile(path)
	info, lerr := os.Lstat(path)
	if err != nil || lerr != nil || string(got) != text || !info.Mode().IsRegular() ||
		info.Sys().(*syscall.Stat_t).Uid != uid {
		t.Errorf("%s holds %q and is %+v: %v, %v", path, got, info, err, lerr)
	}
}

// TestALinkOfAnotherIsReplaced: what another user put at the name of the file, wherever it leads, is replaced.
func TestALinkOfAnotherIsReplaced(t *testing.T) {
	needs.Root(t, "it acts as several users")
	for name, mode := range map[string]os.FileMode{"sticky": 0o777 | os.ModeSticky, "theirs": 0o755} {
		t.Run(name, func(t *testing.T) {
			dir, goal := open(t, mode, map[string]int{"theirs": attacker}[name]), secret(t)
			as(t, attacker, dir, "ln -s "+goal+" link; mkfifo pipe; ln link hard || true")
			for _, file := range []string{"link", "pipe"} {
				if err := write(filepath.Join(dir, file), "report", nil); err != nil {
					t.Error(err)
				}
				holds(t, filepath.Join(dir, file), "report", 0)
			}
			untouched(t, goal)
		})
	}
}

// TestALinkOfAnotherLeadsNowhere: a directory on the way that is a link of another user is refused by root, as is one
// in a directory for everybody.
func TestALinkOfAnotherLeadsNowhere(t *testing.T) {
	needs.Root(t, "it acts as several users")
	dir, private := open(t, 0o777|os.ModeSticky, 0), t.TempDir()
	as(t, attacker, dir, "ln -s "+private+" way")
	err := write(filepath.Join(dir, "way", "report.md"), "report", nil)
	if !errors.Is(err, outfile.ErrLink) || !strings.Contains(err.Error(), "belongs to user 65534") {
		t.Errorf("it is followed: %v", err)
	}
	parent, _, err := outfile.OpenParent(filepath.Join(dir, "way", "new", "t.isc"), nil, true)
	if !errors.Is(err, outfile.ErrLink) {
		t.Errorf("it is followed, to make %v: %v", parent, err)
	}
	if left, err := os.ReadDir(private); err != nil || len(left) > 0 {
		t.Errorf("%v is there: %v", left, err)
	}
	// The same rule for a user who meets another's link.
	if err := write(
		filepath.Join(dir, "way", "report.md"), "report", &syscall.Credential{Uid: victim, Gid: victim},
	); !errors.Is(
		err,
		outfile.ErrLink,
	) {
		t.Errorf("a user follows it: %v", err)
	}
}

// TestAPlaceIsHeld: whoever exchanges the directory after it was opened changes nothing.
func TestAPlaceIsHeld(t *testing.T) {
	needs.Root(t, "it acts as several users")
	dir, private := open(t, 0o755, attacker), t.TempDir()
	as(t, attacker, dir, "mkdir out")
	p, err := outfile.Open(filepath.Join(dir, "out", "report.md"), nil)
	must.NoError(t, err)
	defer p.Close()
	as(t, attacker, dir, "mv out gone; ln -s "+private+" out")
	must.NoError(t, put(p, "report"))
	holds(t, filepath.Join(dir, "gone", "report.md"), "report", 0)
	if left, err := os.ReadDir(private); err != nil || len(left) > 0 {
		t.Errorf("%v is there: %v", left, err)
	}
}

// TestAFolderIsHeld is TestAPlaceIsHeld for the folder of a recording, and for the folders in it.
func TestAFolderIsHeld(t *testing.T) {
	needs.Root(t, "it acts as several users")
	dir, private := open(t, 0o755, attacker), t.TempDir()
	parent, name, err := outfile.OpenParent(filepath.Join(dir, "t.isc"), nil, true)
	must.NoError(t, err)
	defer parent.Close()
	must.NoError(t, parent.Mkdir(name))
	f, err := parent.Folder(name)
	must.NoError(t, err)
	defer f.Close()
	as(t, attacker, dir, "mv t.isc gone; ln -s "+private+" t.isc")
	file, err := f.Create("kernels/000001.parquet.tmp")
	if err == nil {
		err = errors.Join(
			file.Close(),
			f.Sync("kernels/000001.parquet.tmp"),
			f.Rename("kernels/000001.parquet.tmp", "kernels/000001.parquet"),
			f.Sync("kernels"),
			f.Sync("."),
		)
	}
	must.NoError(t, err)
	holds(t, filepath.Join(dir, "gone", "kernels", "000001.parquet"), "", 0)
	if left, err := os.ReadDir(private); err != nil || len(left) > 0 {
		t.Errorf("%v is there: %v", left, err)
	}
	if _, err := parent.Folder(name); err == nil {
		t.Error("a link to a folder counts as one")
	}
}

// TestRightsOfAUser: what is written for a user is written with the rights of that user, groups included, and these are
// given back.
func TestRightsOfAUser(t *testing.T) {
	needs.Root(t, "it acts as several users")
	const group = 4242
	by := &syscall.Credential{Uid: victim, Gid: victim, Groups: []uint32{group}}
	dir := open(t, 0o755, victim)
	must.NoError(t, write(filepath.Join(dir, "mine"), "report", by))
	holds(t, filepath.Join(dir, "mine"), "report", victim)
	roots := open(t, 0o755, 0)
	if err := write(filepath.Join(roots, "report"), "report", by); !errors.Is(err, os.ErrPermission) {
		t.Errorf("a folder of root's is written for a user: %v", err)
	}
	hidden := open(t, 0o700, 0)
	if err := write(filepath.Join(hidden, "report"), "report", by); !errors.Is(err, os.ErrPermission) {
		t.Errorf("a folder of root's is entered for a user: %v", err)
	}
	shared := open(t, 0o770, 0)
	must.NoError(t, os.Chown(shared, 0, group))
	if err := write(filepath.Join(shared, "report"), "report", by); err != nil {
		t.Errorf("a folder of the user's group is not written: %v", err)
	}
	if err := write(filepath.Join(roots, "report"), "report", nil); err != nil {
		t.Errorf("root's rights are gone: %v", err)
	}
	// Their own link they may have: it leads where they may write, or it fails.
	goal := secret(t)
	as(t, victim, dir, "ln -s "+goal+" stolen; ln -s mine alias")
	if err := write(filepath.Join(dir, "stolen"), "report", by); !errors.Is(err, os.ErrPermission) {
		t.Errorf("a link to root's file: %v", err)
	}
	untouched(t, goal)
	if err := write(filepath.Join(dir, "alias"), "again", by); err != nil {
		t.Error(err)
	}
	holds(t, filepath.Join(dir, "mine"), "again", victim)
}

// TestPathsOfOnesOwn: links of one's own, devices, pipes and standard output are written to as they always were.
func TestPathsOfOnesOwn(t *testing.T) {
	dir := t.TempDir() // its links are this user's; root's are in a folder that only root may write to
	real := filepath.Join(dir, "real")
	link := func(to, name string) string {
		t.Helper()
		must.NoError(t, os.Symlink(to, filepath.Join(dir, name)))
		return filepath.Join(dir, name)
	}
	for _, path := range []string{
		real, link("real", "alias"), link(dir, "loop") + "/loop/alias",
		dir + "/./loop/../" + filepath.Base(dir) + "/real",
	} {
		if err := write(path, path, nil); err != nil {
			t.Error(err)
			continue
		}
		if got, err := os.ReadFile(real); err != nil || string(got) != path {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	if info, err := os.Lstat(filepath.Join(dir, "alias")); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is %v, %v", info, err)
	}
	for _, path := range []string{os.DevNull, "/dev/stderr", link(os.DevNull, "null")} {
		if err := write(path, "", nil); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		t.Errorf("%s is %v, %v", os.DevNull, info, err)
	}
	pipe := filepath.Join(dir, "pipe")
	must.NoError(t, unix.Mkfifo(pipe, 0o600))
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0) // so that nobody waits
	must.NoError(t, err)
	defer reader.Close()
	must.NoError(t, write(pipe, "through", nil))
	var text [7]byte
	if _, err := io.ReadFull(reader, text[:]); err != nil || string(text[:]) != "through" {
		t.Errorf("through the pipe came %q, %v", text, err)
	}
	for path, want := range map[string]error{
		dir: unix.EISDIR, dir + "/": unix.EISDIR, "/": unix.EISDIR, "..": unix.EISDIR,
		filepath.Join(dir, "none", "x"): os.ErrNotExist,
		link("self", "self"):            unix.ELOOP, real + "/x": unix.ENOTDIR, "": os.ErrInvalid,
	} {
		if err := write(path, "", nil); !errors.Is(err, want) {
			t.Errorf("%q: %v instead of %v", path, err, want)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*.tmp")); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}
