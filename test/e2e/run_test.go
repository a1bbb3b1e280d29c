package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/report"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// finished is what is left of `inferscope run`.
type finished struct {
	code           int
	stdout, stderr string
	dir            string // where it ran
}

// runner starts `inferscope run` in a folder of its own.
type runner struct {
	t    *testing.T
	env  []string
	dir  string
	user uint32 // 0: root
}

func newRunner(t *testing.T, env ...string) *runner {
	t.Helper()
	needs.Root(t, "it loads BPF programs and attaches probes")
	dir := t.TempDir()
	return &runner{
		t:   t,
		dir: dir,
		env: append(
			[]string{
				"INFERSCOPE_SOCKET=" + filepath.Join(dir, "none.sock"),
				"PYTHONPATH=" + absolute(t, "../../python"),
			},
			env...),
	}
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	out, err := filepath.Abs(path)
	must.NoError(t, err)
	return out
}

// command makes the command; the caller starts it.
func (r *runner) command(args ...string) *exec.Cmd {
	r.t.Helper()
	cmd := exec.Command(program(r.t, "inferscope"), append([]string{"run"}, args...)...)
	cmd.Dir, cmd.Env = r.dir, append(os.Environ(), r.env...)
	if r.user != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: r.user, Gid: r.user}}
	}
	return cmd
}

func (r *runner) run(args ...string) finished {
	r.t.Helper()
	cmd := r.command(args...)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	must.NoError(r.t, cmd.Start())
	limit := time.AfterFunc(4*testTimeout, func() { _ = cmd.Process.Kill() })
	defer limit.Stop()
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		r.t.Fatal(err)
	}
	f := finished{code: cmd.ProcessState.ExitCode(), stdout: out.String(), stderr: complaint.String(), dir: r.dir}
	r.t.Cleanup(func() {
		if r.t.Failed() {
			r.t.Logf("inferscope run %q: %d\n%s", args, f.code, f.stderr)
		}
	})
	return f
}

// report reads the report at path, which must hold the texts.
func (f *finished) report(t *testing.T, path string, texts ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(f.dir, path))
	must.NoError(t, err)
	for _, text := range texts {
		if !bytes.Contains(b, []byte(text)) {
			t.Errorf("%s lacks %q:\n%.3000s", path, text, b)
		}
	}
	return string(b)
}

func (f *finished) says(t *testing.T, code int, texts ...string) {
	t.Helper()
	if f.code != code {
		t.Errorf("exit code %d, want %d", f.code, code)
	}
	for _, text := range texts {
		if !strings.Contains(f.stderr, text) {
			t.Errorf("it does not say %q:\n%s", text, f.stderr)
		}
	}
}

// python returns an interpreter that is a program and not a script that looks for one.
func python(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Skip("needs python3")
	}
	return strings.TrimSpace(string(out))
}

// write puts a program into the runner's folder.
func (r *runner) write(name, text string) string {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil { //nolint:gosec // another user may run it
		r.t.Fatal(err)
	}
	return path
}

const work = `
import sys, time
from inferscope import scope
with scope("first"): pass
def busy(ms):
    end = time.monotonic() + ms / 1000
    while time.monotonic() < end: sum(range(500))
for i in range(10):
    with scope("llm_inference", number=i):
        busy(20)
print("result", sys.argv[1:])
`

// TestRunWithoutADaemon: the whole program is watched, from its first scope on, its output and its
// exit code are passed on, and the report is where it was announced to be.
func TestRunWithoutADaemon(t *testing.T) {
	t.Parallel()
	r := newRunner(t)
	r.write("infer.py", work+"sys.exit(7)\n")
	f := r.run(python(t), "infer.py", "--batch-size", "32")
	f.says(t, 7, "exited with code 7", "wrote ./report.md")
	if f.stdout != "result ['--batch-size', '32']\n" {
		t.Errorf("stdout is %q", f.stdout)
	}
	f.report(t, "report.md", "# InferScope report", "exited with code 7", "llm\\_inference", "| first | 1 |",
		"ranges named \"llm\\_inference\"")
}

// TestRunFormats: flag over environment over file over default, for the path as for the format.
func TestRunFormats(t *testing.T) {
	t.Parallel()
	r := newRunner(t)
	r.write("p.py", "pass")
	py := python(t)
	f := r.run("--report", "a.json", "--", py, "p.py")
	var m report.Model
	if err := json.Unmarshal([]byte(f.report(t, "a.json")), &m); err != nil || m.Kind != report.Kind ||
		!m.Target.Exited ||
		m.Target.Ending.Code != 0 {
		t.Errorf("JSON: %v, target %+v", err, m.Target)
	}
	f = r.run(py, "p.py", "--report", "b.md")
	f.says(t, 0, "--report at the end is taken as inferscope's", "wrote b.md")
	f = r.run("--", py, "-c", "import sys; assert sys.argv[1:] == ['--report', 'c.md']", "--report", "c.md")
	f.says(t, 0, "wrote ./report.md")
	r.write(".inferscope.yaml", "report_path: from_file.json\nreport_format: json\n")
	r.run(py, "p.py")
	f.report(t, "from_file.json", `"kind": "inferscope.report"`)
	r.env = append(r.env, "INFERSCOPE_REPORT_PATH=from_env.md", "INFERSCOPE_REPORT_FORMAT=markdown")
	r.run(py, "p.py")
	f.report(t, "from_env.md", "# InferScope report")
}

// TestRunSignals: 128 + signal, and a report that says it.
func TestRunSignals(t *testing.T) {
	t.Parallel()
	py := python(t)
	for _, c := range []struct {
		name string
		code int
	}{{"SIGSEGV", 139}, {"SIGKILL", 137}} {
		r := newRunner(t)
		f := r.run(py, "-c", "import os, signal, time; time.sleep(.2); os.kill(os.getpid(), signal."+c.name+")")
		f.says(t, c.code, "was killed by "+c.name)
		f.report(t, "report.md", "exited by "+c.name)
	}
}

// TestRunInterrupted: Ctrl-C ends the program, and its report is written. The signal reaches only
// inferscope here, as kill(1) sends it; a terminal sends it to both.
func TestRunInterrupted(t *testing.T) {
	t.Parallel()
	r := newRunner(t)
	cmd := r.command(python(t), "-c", "import time\nprint('up', flush=True)\ntime.sleep(1000)")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal
	log := &output{}
	cmd.Stdout, cmd.Stderr = log, log
	must.NoError(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill() }()
	waitFor(t, "the program to be up", func() bool { return strings.Contains(log.String(), "up") })
	_ = cmd.Process.Signal(os.Interrupt)
	_ = cmd.Wait()
	f := finished{code: cmd.ProcessState.ExitCode(), stderr: log.String(), dir: r.dir}
	f.says(t, 130, "KeyboardInterrupt", "was killed by SIGINT", "wrote ./report.md")
	f.report(t, "report.md", "exited by SIGINT")
}

// TestRunProgramsThatCannotBeRun end as a shell says it, and nothing is left behind.
func TestRunProgramsThatCannotBeRun(t *testing.T) {
	t.Parallel()
	r := newRunner(t)
	f := r.run("no-such-program-anywhere")
	f.says(t, 127, "no-such-program-anywhere")
	f = r.run(r.write("not-executable", "x"))
	f.says(t, 126, "not-executable")
	f = r.run()
	f.says(t, 2, "name a program")
	if err := os.Chmod(r.write("no-program", "\x00\x01"), 0o700); err != nil { //nolint:gosec // to be run
		t.Fatal(err)
	}
	f = r.run("./no-program")
	f.says(t, 126, "exec format error")
}

// TestRunWithARunningDaemon: a user whom the daemon admits may have programs of their own watched, and only these.
func TestRunWithARunningDaemon(t *testing.T) {
	t.Parallel()
	d := launchDaemon(t, "--on-request", "--allow-users", "65534")
	d.waitLog("ready")
	const user = 65534
	r := newRunner(t, "INFERSCOPE_SOCKET="+d.socket)
	for _, dir := range []string{
		r.dir, filepath.Dir(d.socket), filepath.Dir(filepath.Dir(d.socket)), filepath.Dir(r.dir),
		filepath.Dir(program(t, "inferscope")),
	} {
		if err := os.Chmod(dir, 0o777); err != nil { //nolint:gosec // a test's own
			t.Fatal(err)
		}
	}
	r.user = user
	r.write("infer.py", strings.ReplaceAll(work, "from inferscope import scope",
		"import os\nassert os.getuid() == 65534\nfrom inferscope import scope"))
	f := r.run("/usr/bin/python3", "infer.py")
	if f.code == 1 && strings.Contains(f.stderr, "ModuleNotFoundError") {
		t.Skip("the package cannot be read by another user here")
	}
	f.says(t, 0, "wrote ./report.md")
	f.report(t, "report.md", "llm\\_inference")

	sleeper := exec.Command("sleep", "1000")
	must.NoError(t, sleeper.Start())
	defer func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() }()
	ask := exec.Command("curl", "-s", "-X", "PUT", "--unix-socket", d.socket,
		fmt.Sprintf("http://x/v1/targets?pid=%d", sleeper.Process.Pid))
	ask.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	if out, err := ask.CombinedOutput(); !errors.Is(err, exec.ErrNotFound) &&
		!strings.Contains(string(out), "does not belong to user 65534 alone") {
		t.Errorf("another user's process: %s %v", out, err)
	}
	for range 3 { // targets that ended make room, and a pid may come again
		if f := r.run("/usr/bin/python3", "-c", "pass"); f.code != 0 {
			t.Errorf("again: %d", f.code)
		}
	}
}

// TestRunWithoutRoot says what to do, before the program starts.
func TestRunWithoutRoot(t *testing.T) {
	t.Parallel()
	r := newRunner(t)
	for _, dir := range []string{r.dir, filepath.Dir(r.dir), filepath.Dir(program(t, "inferscope"))} {
		_ = os.Chmod(dir, 0o777) //nolint:gosec // a test's own
	}
	r.user = 65534
	f := r.run("touch", "started")
	f.says(t, 6, "no daemon answers", "sudo inferscoped --on-request", "sudo inferscope run")
	if _, err := os.Stat(filepath.Join(r.dir, "started")); err == nil {
		t.Error("the program was started")
	}
}

// TestRunSwitchedOff: the program runs untouched, which is said.
func TestRunSwitchedOff(t *testing.T) {
	t.Parallel()
	r := newRunner(t, "INFERSCOPE_ENABLED=0")
	f := r.run("sh", "-c", "echo $INFERSCOPE_RUN$CUDA_INJECTION64_PATH; exit 5")
	f.says(t, 5, "switched off by INFERSCOPE_ENABLED=0")
	if f.stdout != "\n" {
		t.Errorf("the program was told something: %q", f.stdout)
	}
	if _, err := os.Stat(filepath.Join(r.dir, "report.md")); err == nil {
		t.Error("there is a report")
	}
}

// TestRunInjectsAtTheStart: the start and the end of the program are in the recording. CUDA loads the agent when it is
// initialised, and no thread is stopped. How soon the daemon tells it to record all the time hangs on the machine's
// load.
func TestRunInjectsAtTheStart(t *testing.T) {
	t.Parallel()
	r := newRunner(t)
	p := cudasim.Build(t)
	r.env = append(r.env, "LD_LIBRARY_PATH="+p.LibraryPath(cudasim.Shape580))
	f := r.run(
		"--gpu",
		"continuous",
		"--report",
		"r.json",
		"--",
		p.Victim,
		"sleep 300ms; launch 1 kernel=first_us5; sync; repeat 1000 { launch 10 kernel=gemm_us50; sync; sleep 2ms }; "+
			"sync; sleep 200ms",
	)
	f.says(t, 0)
	var m report.Model
	must.NoError(t, json.Unmarshal([]byte(f.report(t, "r.json")), &m))
	if m.GPU == nil || len(m.GPU.Agents) != 1 {
		t.Fatalf("no agent: %+v", m.GPU)
	}
	if a := m.GPU.Agents[0]; a.Stopped != 0 || a.State != "gone" && a.State != "running" {
		t.Errorf("the agent is %+v", a)
	}
	kernels := uint64(0)
	for _, k := range m.GPU.Kernels.Rows {
		if k.Name == "gemm_us50" {
			kernels = k.Count
		}
	}
	if kernels < 1000 || kernels > 10_000 {
		t.Errorf("%d of 10,000 kernels were seen", kernels)
	}
	// What comes before the first iteration and after the last is told apart from them.
	g := &m.Diagnosis
	if g.Start == nil || g.Start.To-g.Start.From < 300_000_000 || g.End == nil || g.End.To-g.End.From < 200_000_000 {
		t.Errorf("start %+v, end %+v, of %+v", g.Start, g.End, g.Iterations)
	}
}

// TestRunSaveReport: a program asks for a report of itself, while the daemon that was started for it watches it.
func TestRunSaveReport(t *testing.T) {
	t.Parallel()
	for name, user := range map[string][]string{"root": nil, "another user": {"--user", "nobody"}} {
		t.Run(name, func(t *testing.T) {
			r := newRunner(t)
			for _, dir := range []string{
				r.dir, filepath.Dir(r.dir), filepath.Dir(filepath.Dir(r.dir)), filepath.Dir(program(t, "inferscope")),
			} {
				_ = os.Chmod(dir, 0o777) //nolint:gosec // a test's own
			}
			r.write(
				"infer.py",
				work+"import time; time.sleep(.5)\nfrom inferscope import save_report\n"+
					"assert save_report('mine.md') == 'mine.md'\nwith scope('after'): pass\n",
			)
			f := r.run(append(user, "--", "/usr/bin/python3", "infer.py")...)
			if strings.Contains(f.stderr, "ModuleNotFoundError") {
				t.Skip("the package cannot be read by another user here")
			}
			f.says(t, 0, "wrote ./report.md")
			if mine := f.report(t, "mine.md", "llm\\_inference"); strings.Contains(mine, "exited") ||
				strings.Contains(mine, "| after |") {
				t.Errorf("it is not about the running program:\n%.2000s", mine)
			}
			f.report(t, "report.md", "| after | 1 |", "exited")
		})
	}
}

// TestRunAsAnotherUser: root starts a program as somebody else, who has the report, too. Under sudo it is said how.
func TestRunAsAnotherUser(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	r := newRunner(t)
	for _, dir := range []string{r.dir, filepath.Dir(r.dir), filepath.Dir(program(t, "inferscope"))} {
		_ = os.Chmod(dir, 0o777) //nolint:gosec // a test's own
	}
	f := r.run(
		"--user", "nobody", "--", "/usr/bin/python3", "-c",
		"import os; print(os.getresuid(), os.getresgid(), os.getgroups(), os.environ['USER'], "+
			"'CUDA_INJECTION64_PATH' in os.environ)",
	)
	f.says(t, 0, "wrote ./report.md")
	if f.stdout != "(65534, 65534, 65534) (65534, 65534, 65534) [65534] nobody True\n" {
		t.Errorf("the program is %q", f.stdout)
	}
	info, err := os.Stat(filepath.Join(r.dir, "report.md"))
	if err != nil || info.Sys().(*syscall.Stat_t).Uid != 65534 {
		t.Errorf("the report is of %+v, %v", info, err)
	}
	r.env = append(r.env, "SUDO_USER=nobody")
	f = r.run("/usr/bin/python3", "-c", "import os; print(os.getuid())")
	f.says(t, 0, "the program runs as root; --user nobody runs it as nobody")
	if f.stdout != "0\n" {
		t.Errorf("it runs as %q", f.stdout)
	}
	f = r.run("--user", "no-such-user", "--", "true")
	f.says(t, 2, "no-such-user")
	r.user = 65534
	f = r.run("--user", "root", "--", "true")
	f.says(t, 2, "--user is for root")
}

// TestRunNoInject: nothing is put into a program's environment that would inject an agent into it where it, or the
// daemon that watches it, shall have none.
func TestRunNoInject(t *testing.T) {
	t.Parallel()
	show := []string{"--", "/bin/sh", "-c", `echo "agent=$CUDA_INJECTION64_PATH"`}
	injected := func(r *runner, args ...string) bool {
		f := r.run(append(args, show...)...)
		f.says(t, 0)
		return !strings.Contains(f.stdout, "agent=\n")
	}
	r := newRunner(t)
	if !injected(r) {
		t.Error("no agent is given to a program that may have one")
	}
	for _, args := range [][]string{{"--no-inject"}, {"--gpu", "off"}} {
		if injected(r, args...) {
			t.Errorf("%v: a program is given an agent", args)
		}
	}
	for _, args := range [][]string{{"--no-inject"}, {"--gpu", "off"}, {}} {
		d := launchDaemon(t, append([]string{"--on-request"}, args...)...)
		d.waitLog("ready")
		r.env = append(r.env, "INFERSCOPE_SOCKET="+d.socket)
		if got, want := injected(r), len(args) == 0; got != want {
			t.Errorf("a daemon started with %v: a program is given an agent: %v", args, got)
		}
		if len(args) == 0 {
			f := r.run(append([]string{"--no-inject"}, show...)...)
			f.says(t, 2, "brings agents into programs", "start that daemon with --no-inject")
			if f.stdout != "" {
				t.Errorf("the program ran: %q", f.stdout)
			}
		}
		d.stop()
	}
}
