package confine

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// outcome is what a confined process and a program that it starts could do.
type outcome struct {
	Failed         string // "": it confined itself
	Kept, Gone     bool   // CAP_BPF and CAP_CHOWN, on a thread that was there before
	BoundGone      bool   // CAP_CHOWN for programs that it starts
	Unshare, Mount unix.Errno
	Inside, Beside string // errors of writing in the folder and beside it; "": none
	Renamed        string
	Child          string // capabilities of a program that it started
}

func TestMain(m *testing.M) {
	if dir := os.Getenv("CONFINE_TEST"); dir != "" {
		_ = json.NewEncoder(os.Stdout).Encode(confined(dir))
		return
	}
	os.Exit(m.Run())
}

func confined(dir string) outcome {
	var o outcome
	// A thread of its own, as the daemon has several: what is given up must be so on all.
	asked, answers := make(chan bool), make(chan *cap.Set)
	go func() {
		<-asked
		answers <- cap.GetProc()
	}()
	if err := errors.Join(Capabilities(cap.BPF), Syscalls(), Files(dir)); err != nil {
		o.Failed = err.Error()
		return o
	}
	asked <- true
	set := <-answers
	kept, _ := set.GetFlag(cap.Permitted, cap.BPF)
	chown, _ := set.GetFlag(cap.Permitted, cap.CHOWN)
	bound, _ := cap.GetBound(cap.CHOWN)
	o.Kept, o.Gone, o.BoundGone = kept, !chown, !bound
	errors.As(unix.Unshare(unix.CLONE_NEWUTS), &o.Unshare)
	errors.As(unix.Mount("none", dir, "tmpfs", 0, ""), &o.Mount)
	write := func(path string) string {
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			return err.Error()
		}
		return ""
	}
	o.Inside, o.Beside = write(filepath.Join(dir, "a", "inside")), write(filepath.Join(filepath.Dir(dir), "beside"))
	if err := os.Rename(filepath.Join(dir, "a", "inside"), filepath.Join(dir, "b", "inside")); err != nil {
		o.Renamed = err.Error()
	}
	out, err := exec.Command("grep", "CapPrm", "/proc/self/status").Output()
	o.Child = string(out)
	if err != nil {
		o.Child = err.Error()
	}
	return o
}

// TestConfined: a process of root's keeps what it names, on all threads and for what it starts, and writes in its
// folder alone.
func TestConfined(t *testing.T) {
	needs.Root(t, "it has capabilities to give up")
	dir := filepath.Join(t.TempDir(), "mine")
	for _, d := range []string{"a", "b"} {
		must.NoError(t, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "CONFINE_TEST="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	must.NoError(t, err)
	var got outcome
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	beside := got.Beside
	got.Beside = ""
	want := outcome{
		Kept:      true,
		Gone:      true,
		BoundGone: true,
		Unshare:   unix.EPERM,
		Mount:     unix.EPERM,
		Child:     "CapPrm:\t0000008000000000\n",
	}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if beside == "" && landlocked() {
		t.Error("it wrote beside its folder")
	}
}

// landlocked reports whether this kernel has a Landlock that allows files to be moved between folders (5.19).
func landlocked() bool {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, 1)
	return errno == 0 && version >= 2
}
