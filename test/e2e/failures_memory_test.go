package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// memoryGroup is a cgroup whose memory can be limited.
type memoryGroup struct {
	dir                string
	limit, used, procs string // files in it
}

// newMemoryGroup makes one: of version 2, else of version 1.
func newMemoryGroup(t *testing.T) memoryGroup {
	t.Helper()
	needs.Root(t, "it loads BPF programs and attaches probes")
	name := fmt.Sprintf("inferscope-test-%d", os.Getpid())
	g := memoryGroup{
		dir:   filepath.Join("/sys/fs/cgroup", name),
		limit: "memory.max",
		used:  "memory.current",
		procs: "cgroup.procs",
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		_ = os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+memory"), 0o600) // it may be on already
	} else {
		g = memoryGroup{
			dir: filepath.Join("/sys/fs/cgroup/memory", name), limit: "memory.limit_in_bytes",
			used: "memory.usage_in_bytes", procs: "cgroup.procs",
		}
	}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		t.Skipf("needs a cgroup of its own: %v", err)
	}
	t.Cleanup(func() { waitFor(t, "the cgroup to be empty", func() bool { return os.Remove(g.dir) == nil }) })
	if _, err := os.Stat(filepath.Join(g.dir, g.limit)); err != nil {
		t.Skipf("needs the memory controller: %v", err)
	}
	return g
}

func (g *memoryGroup) allow(t *testing.T, bytes int) {
	t.Helper()
	must.NoError(t, os.WriteFile(filepath.Join(g.dir, g.limit), []byte(strconv.Itoa(bytes)), 0o600))
}

func (g *memoryGroup) usage(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(g.dir, g.used))
	must.NoError(t, err)
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	must.NoError(t, err)
	return n
}

// join makes a command start in the group.
func (g *memoryGroup) join(cmd *exec.Cmd) {
	cmd.Args = append(
		[]string{"sh", "-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(g.dir, g.procs), cmd.Path},
		cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
}

// TestFailureProgramOutOfMemory: the kernel kills a program in a container that is too small for it. Inferscope and its
// daemon are in the same one, and its report is written.
func TestFailureProgramOutOfMemory(t *testing.T) {
	needs.Long(t)
	r := newRunner(t)
	g := newMemoryGroup(t)
	g.allow(t, 500_000_000)
	r.write("hungry.py", work+"held = []\nwhile True: held.append(bytearray(b'x') * 10_000_000)\n")
	cmd := r.command("--trace-size-mb", "10", "--", python(t), "hungry.py")
	g.join(cmd)
	var said bytes.Buffer
	cmd.Stderr = &said
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	f := finished{code: cmd.ProcessState.ExitCode(), stderr: said.String(), dir: r.dir}
	f.says(t, 128+int(syscall.SIGKILL), "was killed by SIGKILL", "it ran out of memory", "wrote ./report.md")
	f.report(t, "report.md", "exited by SIGKILL, while the kernel killed for want of memory", "llm\\_inference")
}

// TestFailureDaemonOutOfMemory: the kernel kills the daemon. The target goes on, unharmed and without probes, what
// `record` wrote is a valid recording, and clients say that there is no daemon.
func TestFailureDaemonOutOfMemory(t *testing.T) {
	needs.Long(t)
	g := newMemoryGroup(t)
	v := cudasim.Start(t, cudasim.Options{Lib: "driver", Level: "off"}, "until { repeat 100 { launch 20; sync } }")
	dir := t.TempDir()
	d := &daemon{t: t, socket: filepath.Join(dir, "s"), log: &output{}, done: make(chan error, 1)}
	d.cmd = exec.Command(program(t, "inferscoped"), "--socket", d.socket, "--pid", fmt.Sprint(v.PID),
		"--trace-size-mb", "2000", "--gpu", "continuous", "--no-inject", "--overhead-budget", "0")
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	g.join(d.cmd)
	must.NoError(t, d.cmd.Start())
	t.Cleanup(func() { _ = d.cmd.Process.Kill() })
	go func() { d.done <- d.cmd.Wait() }()
	d.waitLog("ready")

	folder := filepath.Join(dir, "t.isc")
	record := exec.Command(program(t, "inferscope"), "--socket", d.socket, "record", "--pid",
		fmt.Sprint(v.PID), "-o", folder)
	said := &output{}
	record.Stderr = said
	must.NoError(t, record.Start())
	t.Cleanup(func() { _ = record.Process.Kill() })
	waitFor(t, "the first stretch", func() bool {
		in, err := archive.Inspect(folder, false)
		return err == nil && len(in.Manifest.Stretches) > 0
	})
	g.allow(t, g.usage(t)+1_000_000)
	if code := d.exitCode(); code != -1 || d.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the daemon ended with %v", d.cmd.ProcessState)
	}
	_ = record.Wait()
	if code := record.ProcessState.ExitCode(); code != int(clierror.NoDaemon) && code != int(clierror.General) ||
		!strings.Contains(said.String(), "kept, and valid without its end") {
		t.Errorf("record: %d %s", code, said)
	}
	rec, err := archive.Read(folder, archive.DefaultLimits())
	if err != nil || len(rec.Events) == 0 {
		t.Errorf("what was written: %v", err)
	}
	if _, said, code := d.inferscope("report", "--pid", fmt.Sprint(v.PID), "--for", "1s"); code != 0 {
		t.Errorf("a report without the daemon: %d %s", code, said)
	}
	v.Go()
	v.Finish()
}

// TestFailureFullDisk: a recording that the disk has no room for ends with an error that says where what there is lies.
func TestFailureFullDisk(t *testing.T) {
	needs.Long(t)
	needs.Root(t, "it loads BPF programs and attaches probes")
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("needs a file system of its own: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	v := cudasim.Start(t, cudasim.Options{Lib: "driver", Level: "off"},
		"until { repeat 100 { launch 20; sync; sleep 100us } }")
	d := startDaemon(t, v.PID, probesOnly...)
	_, complaint, code := d.inferscope("record", "--pid", fmt.Sprint(v.PID), "--for", "4s", "-o",
		filepath.Join(dir, "t.isc"))
	if code != int(clierror.General) || !strings.Contains(complaint, "no space left on device") {
		t.Errorf("record: %d %s", code, complaint)
	}
	_ = os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 1<<20), 0o600) // as far as it goes
	if out, complaint, code := d.inferscope("report", "--pid", fmt.Sprint(v.PID), "-o",
		filepath.Join(dir, "r.json"), "--format", "json"); code != int(clierror.General) ||
		!strings.Contains(complaint, "no space left on device") {
		t.Errorf("report: %d %s %.200s", code, complaint, out)
	}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "r.json") || err != nil {
			t.Errorf("half a report is left: %s, %v", e.Name(), err)
		}
	}
	v.Go()
	v.Finish()
}
