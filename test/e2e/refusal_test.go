package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// refused starts inferscoped, which must end with code and say all of words.
func refused(t *testing.T, cmd *exec.Cmd, code clierror.Code, words ...string) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != int(code) {
		t.Errorf("exit code %d, not %d", got, code)
	}
	for _, w := range words {
		if !strings.Contains(string(out), w) {
			t.Errorf("the message does not say %q", w)
		}
	}
	if t.Failed() {
		t.Logf("it said:\n%s", out)
	}
}

func inferscoped(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	return exec.Command(
		program(t, "inferscoped"),
		append([]string{"--socket", filepath.Join(t.TempDir(), "s")}, args...)...)
}

// sleeper starts a process without CUDA.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "300")
	must.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

func TestNoSuchProcess(t *testing.T) {
	needs.Root(t, "it loads BPF programs and attaches probes")
	refused(t, inferscoped(t, "--pid", "4194000"), clierror.NoProcess, "4194000", "no such process")
}

func TestKernelThread(t *testing.T) {
	needs.Root(t, "it loads BPF programs and attaches probes")
	refused(t, inferscoped(t, "--pid", "2"), clierror.NoProcess, "2", "kernel thread")
}

func TestUnknownFlag(t *testing.T) {
	refused(t, inferscoped(t, "--pdi", "1"), clierror.Usage, "--pdi")
}

func TestNoPermission(t *testing.T) {
	needs.Root(t, "it loads BPF programs and attaches probes")
	cmd := inferscoped(t, "--pid", fmt.Sprint(sleeper(t).Process.Pid))
	copied := filepath.Join(os.TempDir(), fmt.Sprintf("inferscoped-%d", os.Getpid())) // where anybody may run it
	t.Cleanup(func() { os.Remove(copied) })
	content, err := os.ReadFile(cmd.Path)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(copied, content, 0o755))
	cmd.Path = copied
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	refused(t, cmd, clierror.Permission, "CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE")
}

func TestNoBTF(t *testing.T) {
	needs.Root(t, "it loads BPF programs and attaches probes")
	cmd := inferscoped(t, "--pid", fmt.Sprint(sleeper(t).Process.Pid))
	script := `mount -t tmpfs none /sys/kernel/btf && exec "$0" "$@"`
	hidden := exec.Command("unshare", append([]string{"--mount", "sh", "-c", script}, cmd.Args...)...)
	refused(t, hidden, clierror.Unsupported, "BTF", "CONFIG_DEBUG_INFO_BTF")
}

func TestSecondDaemonOnTheSocket(t *testing.T) {
	pid := sleeper(t).Process.Pid
	d := launchDaemon(t, "--pid", fmt.Sprint(pid))
	d.waitLog("ready")
	second := exec.Command(program(t, "inferscoped"), "--socket", d.socket, "--pid", fmt.Sprint(pid))
	refused(t, second, clierror.Busy, fmt.Sprint(d.cmd.Process.Pid), d.socket)
	if len(d.status().Targets) != 1 {
		t.Error("the first daemon does not serve any more")
	}
	d.stop()
}

func TestStaleSocket(t *testing.T) {
	needs.Root(t, "it loads BPF programs and attaches probes")
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must.NoError(t, err)
	l.SetUnlinkOnClose(false)
	l.Close() // as a killed daemon leaves it
	d := launchDaemon(t, "--socket", path, "--pid", fmt.Sprint(sleeper(t).Process.Pid))
	d.socket = path
	d.waitLog("ready")
	d.status()
	d.stop()
}

func TestTargetEndsWhileTraced(t *testing.T) {
	t.Parallel()
	v := cudasim.Start(t, cudasim.Options{Lib: "driver"}, "wait", "launch 40", "sync", "exit 7")
	d := startDaemon(t, v.PID, probesOnly...)
	v.Go()
	_ = v.Wait()
	waitFor(t, "the end of the target to be noticed", func() bool { return d.status().Targets[0].State == "exited" })
	out, complaint, code := d.inferscope("report", "--pid", fmt.Sprint(v.PID), "--format", "markdown")
	if code != 0 || !strings.Contains(out, "cuLaunchKernel") {
		t.Errorf("exit code %d, %s, report:\n%s", code, complaint, out)
	}
	if !strings.Contains(out, "exited") || !strings.Contains(out, "code 7") {
		t.Errorf("the report does not say that the target exited with code 7:\n%s", out)
	}
	d.stop()
}

// hostile is a program that maps a file executable, as the dynamic linker would.
const hostile = `
import mmap, os, sys
f = os.open(sys.argv[1], os.O_RDONLY)
m = mmap.mmap(f, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
print("mapped", flush=True)
sys.stdin.readline()
`

func TestHostileLibraries(t *testing.T) {
	t.Parallel()
	needs.Root(t, "it loads BPF programs and attaches probes")
	python := needs.Tool(t, "python3")
	good, err := os.ReadFile(cudasim.Build(t).Libcuda(cudasim.Shape580))
	must.NoError(t, err)
	for name, content := range map[string][]byte{
		"truncated":   good[:4000],
		"not an ELF":  []byte(strings.Repeat("garbage ", 1000)),
		"only header": good[:64],
		"zeros":       append(append([]byte{}, good[:64]...), make([]byte, 8192)...),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "libcuda.so.1")
			must.NoError(t, os.WriteFile(path, content, 0o755))
			cmd := exec.Command(python, "-c", hostile, path)
			stdin, _ := cmd.StdinPipe()
			stdout := &output{}
			cmd.Stdout = stdout
			must.NoError(t, cmd.Start())
			t.Cleanup(func() { stdin.Close(); _ = cmd.Wait() })
			waitFor(t, "the file to be mapped", func() bool { return strings.Contains(stdout.String(), "mapped") })
			d := startDaemon(t, cmd.Process.Pid, probesOnly...)
			d.waitLog("is not probed")
			s := d.status()
			if len(s.Libraries) != 1 || s.Libraries[0].Error == "" {
				t.Errorf("libraries: %+v", s.Libraries)
			}
			d.stop()
		})
	}
}

func TestOtherNamespaces(t *testing.T) {
	t.Parallel()
	needs.Root(t, "it loads BPF programs and attaches probes")
	p := cudasim.Build(t)
	root := t.TempDir()
	// The target lives in its own mount and pid namespace, and its library at a
	// path that does not exist outside.
	script := `set -e
mount -t tmpfs none "$1"; mkdir "$1/lib"; cp "$2" "$1/lib/libcuda.so.1"; shift 2
exec "$@"`
	v := cudasim.Start(t, cudasim.Options{Program: []string{
		"unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, "sh",
		root, p.Libcuda(cudasim.Shape535), p.Victim, "--lib", "driver", "--path", filepath.Join(root, "lib",
			"libcuda.so.1"),
	}},
		"wait", "launch 99", "h2d 4096 x3", "sync", "print done", "wait")
	d := startDaemon(t, v.PID, probesOnly...)
	v.Go()
	v.WaitLine("done")
	rec := d.recording(v.PID)
	launches, inner := 0, uint32(0)
	for _, e := range rec.Events {
		if e.Kind == event.Call && rec.Meta.Functions[e.Func].Base == "cuLaunchKernel" {
			launches++
			inner = e.PID
		}
	}
	if launches != 99 {
		t.Errorf("%d launches seen, 99 made", launches)
	}
	for _, q := range rec.Meta.Processes {
		if q.PID == inner && q.NSPID != 1 {
			t.Errorf("pid %d is %d in its namespace, truly 1", q.PID, q.NSPID)
		}
	}
	d.stop()
}
