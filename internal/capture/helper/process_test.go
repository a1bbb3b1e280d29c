package helper

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

const childEnv = "HELPER_TEST_CHILD"

// child is the helper of TestStart: it sends back what it reads of the file that it was handed, and that file.
func child() int {
	conn, err := Parent()
	if err != nil {
		return 1
	}
	handed := os.NewFile(FirstFile, "handed")
	text, err := io.ReadAll(handed)
	if err != nil || Send(conn, text, int(handed.Fd())) != nil {
		return 2
	}
	_, _ = conn.Read(make([]byte, 1)) // until the parent has gone
	return 0
}

func TestStart(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	must.NoError(t, os.WriteFile(name, []byte("what is handed over"), 0o600))
	file, err := os.Open(name)
	must.NoError(t, err)
	defer file.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"=1")
	conn, err := Unwind.Start(cmd, Packets, file)
	must.NoError(t, err)
	data := make([]byte, 100)
	n, files, err := Receive(conn, data, 1)
	if err != nil || string(data[:n]) != "what is handed over" || len(files) != 1 {
		t.Fatalf("%q with %d files, error %v", data[:n], len(files), err)
	}
	defer files[0].Close()
	var ours, theirs unix.Stat_t
	must.NoError(t, errors.Join(unix.Fstat(int(file.Fd()), &ours), unix.Fstat(int(files[0].Fd()), &theirs)))
	if ours.Ino != theirs.Ino || ours.Dev != theirs.Dev {
		t.Error("another file came back")
	}
	if flags, err := unix.FcntlInt(files[0].Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("other programs inherit what was received: flags %#x, error %v", flags, err)
	}
	if err := errors.Join(conn.Close(), cmd.Wait()); err != nil {
		t.Errorf("the helper ended with %v", err)
	}
}

func TestStartOfWhatIsNoProgram(t *testing.T) {
	before := open(t)
	if _, err := Unwind.Start(exec.Command("/no/such/program"), Stream); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	if n := open(t); n != before {
		t.Errorf("%d descriptors are open, %d before", n, before)
	}
}

// TestReceiveHostile: whatever comes, no descriptor stays open that the caller does not know of.
func TestReceiveHostile(t *testing.T) {
	ours, theirs := connected(t)
	null := int(os.Stdin.Fd())
	before := open(t)
	for what, c := range map[string]struct {
		data []byte
		fds  []int
		most int
	}{
		"too long":                {bytes.Repeat([]byte("x"), 11), []int{null}, 1},
		"one more than wanted":    {[]byte("x"), []int{null, null}, 1},
		"many more than wanted":   {[]byte("x"), []int{null, null, null, null, null}, 2},
		"one, and none is wanted": {[]byte("x"), []int{null}, 0},
	} {
		must.NoError(t, Send(ours, c.data, c.fds...))
		if _, files, err := Receive(theirs, make([]byte, 10), c.most); !errors.Is(err, ErrMessage) || len(files) != 0 {
			t.Errorf("%s: %d files, error %v", what, len(files), err)
		}
	}
	if n := open(t); n != before {
		t.Errorf("%d descriptors are open, %d before", n, before)
	}
	_ = ours.Close()
	if _, _, err := Receive(theirs, make([]byte, 10), 1); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

func TestErrorOverTheWire(t *testing.T) {
	err := RemoteError("the probe was refused", unix.EPERM)
	if err.Error() != "the probe was refused" || !errors.Is(err, os.ErrPermission) {
		t.Errorf("%v", err)
	}
	if errors.Unwrap(RemoteError("no cause", nil)) != nil {
		t.Error("an error without a cause has one")
	}
}

func connected(t *testing.T) (ours, theirs *net.UnixConn) {
	t.Helper()
	a, b, err := Pair(Packets)
	must.NoError(t, err)
	if ours, err = Connect(a); err != nil {
		t.Fatal(err)
	}
	if theirs, err = Connect(b); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(ours.Close(), theirs.Close()) })
	return ours, theirs
}

func open(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	must.NoError(t, err)
	return len(all)
}

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(child())
	}
	if os.Getenv("PROCNAME_TEST") != "" {
		Unwind.Take()
		_, _ = os.Stdout.WriteString("ready\n")
		_, _ = os.Stdin.Read(make([]byte, 1))
		return
	}
	os.Exit(m.Run())
}

// A process that is this program again has a name of its own, as ps and top show it.
func TestNameOfAProcess(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "more")
	cmd.Env = append(os.Environ(), "PROCNAME_TEST=1")
	Unwind.Give(cmd)
	in, err := cmd.StdinPipe()
	must.NoError(t, err)
	out, err := cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	defer func() { _ = cmd.Wait() }()
	defer in.Close()
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	dir := fmt.Sprintf("/proc/%d", cmd.Process.Pid)
	line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
	if string(line) != "inferscope-unwind\x00more\x00" {
		t.Errorf("its command line is %q", line)
	}
	comms, _ := filepath.Glob(filepath.Join(dir, "task/*/comm"))
	for _, f := range comms {
		if comm, err := os.ReadFile(f); err == nil && string(comm) != "iscope-unwind\n" {
			t.Errorf("%s is %q", f, comm)
		}
	}
	if len(comms) == 0 {
		t.Error("it has no threads")
	}
}
