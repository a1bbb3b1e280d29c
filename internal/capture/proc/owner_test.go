package proc

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

const nobody = 65534

// startAsNobody starts a program as an unprivileged user; it ends with the test.
func startAsNobody(t *testing.T, attr syscall.SysProcAttr, args ...string) *exec.Cmd {
	t.Helper()
	needs.Root(t, "it loads BPF programs and looks into other processes")
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = "/"
	attr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	attr.Pdeathsig = syscall.SIGKILL
	cmd.SysProcAttr = &attr
	if err := cmd.Start(); err != nil {
		t.Skipf("cannot run %v as user %d: %v", args, nobody, err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// copied returns a copy of a program with these permissions, in a folder that everybody may enter.
func copied(t *testing.T, program string, mode os.FileMode) string {
	t.Helper()
	needs.Root(t, "it loads BPF programs and looks into other processes")
	from, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("needs %s", program)
	}
	content, err := os.ReadFile(from)
	must.NoError(t, err)
	dir, err := os.MkdirTemp("", "owner")
	must.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	to := filepath.Join(dir, "copy")
	if err := os.WriteFile(to, content, 0o700); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // another user enters it
		t.Fatal(err)
	}
	must.NoError(t, os.Chmod(to, mode))
	return to
}

// TestWhoOwnsAProcess: one that has other rights than its user, or hides, is nobody's but root's, whatever its real
// user id and the owner of its folder in /proc are.
func TestWhoOwnsAProcess(t *testing.T) {
	const setuid, setgid = os.ModeSetuid | 0o755, os.ModeSetgid | 0o755
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip("needs sleep")
	}
	for _, tt := range []struct {
		name  string
		attr  syscall.SysProcAttr
		args  []string
		owner uint32
	}{
		{"a plain program", syscall.SysProcAttr{}, []string{sleep, "100"}, nobody},
		{"setuid root", syscall.SysProcAttr{}, []string{copied(t, "sleep", setuid), "100"}, Root},
		{"setgid", syscall.SysProcAttr{}, []string{copied(t, "sleep", setgid), "100"}, Root},
		{"one that its user cannot read", syscall.SysProcAttr{}, []string{copied(t, "sleep", 0o711), "100"}, Root},
		{
			"with a capability",
			syscall.SysProcAttr{AmbientCaps: []uintptr{unix.CAP_NET_RAW}},
			[]string{sleep, "100"},
			Root,
		},
		{
			"in a user namespace of its own",
			syscall.SysProcAttr{},
			[]string{"unshare", "-U", "-r", sleep, "100"},
			nobody,
		},
	} {
		cmd := startAsNobody(t, tt.attr, tt.args...)
		want := filepath.Base(tt.args[max(0, len(tt.args)-2)])
		p := described(t, cmd.Process.Pid)
		for deadline := time.Now().Add(testTimeout); ; time.Sleep(time.Millisecond) { // unshare runs for a moment
			exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.PID))
			if err == nil && filepath.Base(exe) == want {
				break
			}
			if time.Now().After(deadline) || !p.Alive() {
				break
			}
		}
		if !p.Alive() {
			t.Logf("%s: cannot be had here", tt.name)
			continue
		}
		owner, err := p.CurrentOwner()
		if owner != tt.owner || (err == nil) != (tt.owner == nobody) {
			t.Errorf("%s belongs to %d (%v), want %d", tt.name, owner, err, tt.owner)
		}
		g, err := p.Guard(nobody)
		if (err == nil) != (tt.owner == nobody) {
			t.Errorf("%s: guarding it for its user: %v", tt.name, err)
		}
		if g != nil {
			_ = g.Close()
		}
	}
}

// TestGuardSeesAnotherProgram: what was read for a user is not told where the process may have been somebody else's
// meanwhile, even where it is the user's again.
func TestGuardSeesAnotherProgram(t *testing.T) {
	cmd := exec.Command("/bin/sh", "-c", "read go; exec sleep 100")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: nobody, Gid: nobody},
		Pdeathsig:  syscall.SIGKILL,
	}
	needs.Root(t, "it loads BPF programs and looks into other processes")
	cmd.Dir = "/"
	in, err := cmd.StdinPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	p := described(t, cmd.Process.Pid)
	g, err := p.Guard(nobody)
	must.NoError(t, err)
	defer g.Close()
	if err := g.Check(); err != nil {
		t.Fatalf("nothing has happened: %v", err)
	}
	if _, err := p.Guard(nobody + 1); err == nil {
		t.Error("a guard for another user")
	}
	_, _ = io.WriteString(in, "\n")
	must.Become(t, "the guard to see that it runs another program", func() bool { return g.Check() != nil })
	if owner, err := p.CurrentOwner(); owner != nobody || err != nil {
		t.Errorf("it is still the user's: %d, %v", owner, err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if _, err := p.CurrentOwner(); err == nil {
		t.Error("a process that has ended has an owner")
	}
}

// TestChangesTellTheOwner: the kernel says at each exec as whom the program runs, so that one too short to be looked at
// is known, too.
func TestChangesTellTheOwner(t *testing.T) {
	privileged := copied(t, "true", os.ModeSetuid|0o755)
	script := fmt.Sprintf("read go; for i in 1 2 3 4 5 6 7 8; do %s; done; echo done; read end", privileged)
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: nobody, Gid: nobody},
		Pdeathsig:  syscall.SIGKILL,
	}
	cmd.Dir = "/"
	c := child.Start(t, cmd)
	w := newWatch(t, Options{})
	if p := w.add(c.PID); p.Owner != nobody {
		t.Errorf("the shell is %+v", p)
	}
	_, _ = io.WriteString(c.In, "go\n")
	c.Line()
	_, _ = io.WriteString(c.In, "end\n")
	w.next(Exited, c.PID)
	execs := 0
	for _, c := range w.seen {
		if c.Kind != Execed {
			continue
		}
		execs++
		if c.Process.Owner != Root || c.Process.UID != nobody {
			t.Errorf("a setuid program runs as %d, owned by %d: want the real id %d, and root",
				c.Process.UID, c.Process.Owner, nobody)
		}
	}
	if execs != 8 {
		t.Errorf("%d programs were started, want 8", execs)
	}
}

// TestOwnerThatRenounces: a process that gives up root is the user's from then on, and that is told.
func TestOwnerThatRenounces(t *testing.T) {
	v := newVictim(t)
	w := newWatch(t, Options{})
	if p := w.add(v.pid); p.Owner != Root {
		t.Errorf("of root's: %+v", p)
	}
	v.must("setuid %d", nobody)
	c := w.next(Renewed, v.pid)
	if c.Process.UID != nobody {
		t.Errorf("it is %+v", c.Process)
	}
	if c.Process.Owner != Root { // setuid(2) leaves the memory hidden until the next exec
		t.Errorf("what a process had as root belongs to %d", c.Process.Owner)
	}
}
