package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/daemon/config"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

// watcher is the daemon that watches the program: a running one or a temporary one.
type watcher struct {
	*api.Client
	own   *exec.Cmd     // nil: it was there
	dir   string        // of our own: its socket and its log
	ended chan struct{} // closed when our own has ended
}

// attach connects to the daemon, or starts one.
func (g *global) attach(j *job) (*watcher, error) {
	client, err := g.dial()
	if err == nil {
		if j.flags.gpu != "" || j.flags.traceMB != "" || j.flags.sampleHz != "" {
			fmt.Fprintf(
				g.stderr,
				"inferscope: warning: the daemon on %s has settings of its own: --gpu, --trace-size-mb and "+
					"--cpu-sampling-frequency-hz are ignored\n",
				g.socket,
			)
		}
		return &watcher{Client: client}, nil
	}
	if clierror.CodeOf(err) != clierror.NoDaemon {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, clierror.New(
			clierror.NoDaemon,
			"start one for all users with: sudo inferscoped --on-request --allow-users all; or run this as root: sudo inferscope run ...",
			err,
		)
	}
	return g.startDaemon(j.daemonFlags(), j.as)
}

// settleTime bounds how long a daemon may take to load its BPF programs on a slow machine.
const settleTime = time.Minute

var errInjects = errors.New("run: --no-inject: the daemon that runs brings agents into programs")

// agents reports whether agents are used. A running daemon has settings of its own.
func (w *watcher) agents(ctx context.Context, j *job) (bool, error) {
	if j.flags.gpu == "off" && w.own != nil {
		return false, nil
	}
	v, err := w.Version(ctx) // which everybody may ask for, also before there is a program of theirs
	if err != nil {
		return false, err
	}
	if v.Agents && j.flags.noInject {
		return false, clierror.New(clierror.Usage,
			"start that daemon with --no-inject, or end it and run this as root", errInjects)
	}
	return v.Agents && j.flags.gpu != "off", nil
}

// startDaemon starts a temporary daemon that the user as may also connect to, if not nil. The daemon ends with the
// calling thread.
func (g *global) startDaemon(flags []string, as *account) (*watcher, error) {
	path, err := daemonProgram()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "inferscope-run-")
	if err != nil {
		return nil, fmt.Errorf("making a folder for a daemon: %w", err)
	}
	if as != nil { // whose program may ask for its own report
		if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // see above
			return nil, errors.Join(fmt.Errorf("letting %s reach the daemon: %w", as.name, err), os.RemoveAll(dir))
		}
	}
	w := &watcher{dir: dir, ended: make(chan struct{})}
	log, err := os.Create(w.log())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making the daemon's log: %w", err), os.RemoveAll(dir))
	}
	defer log.Close()
	// OTEL_EXPORTER_OTLP_ENDPOINT is meant for the program: a temporary daemon exports nothing.
	args := append([]string{"--on-request", "--keep", "24h", "--socket", w.socket(), "--otlp-endpoint="}, flags...)
	w.own = exec.Command(path, args...) //nolint:noctx // it ends by close
	w.own.Stdout, w.own.Stderr, w.own.Env = log, log, g.environ
	// In its own process group: Ctrl-C is for the program, and the daemon is needed after it.
	w.own.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGTERM}
	if err := w.own.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("starting %s: %w", path, err), os.RemoveAll(dir))
	}
	go func() {
		_ = w.own.Wait() // its state says how
		close(w.ended)
	}()
	if err := w.await(); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// reachable adds to a program's environment the daemon's socket and the path of this program, for save_report.
func (w *watcher) reachable(environ config.Environment, socket string) config.Environment {
	if w.own != nil {
		socket = w.socket()
	}
	out := append(slices.Clone(environ), api.SocketEnv+"="+socket)
	if v, _ := environ.Get(programEnv); v != "" {
		return out
	}
	if self, err := os.Executable(); err == nil {
		out = append(out, programEnv+"="+self)
	}
	return out
}

// programEnv is the variable with the path of inferscope, for save_report of the Python package.
const programEnv = "INFERSCOPE_BIN"

func (w *watcher) socket() string { return filepath.Join(w.dir, "s") }
func (w *watcher) log() string    { return filepath.Join(w.dir, "log") }

// await waits until the daemon answers.
func (w *watcher) await() error {
	for end := time.Now().Add(settleTime); ; {
		client, err := api.Dial(w.socket())
		if err == nil {
			w.Client = client
			return nil
		}
		select {
		case <-w.ended:
			code := w.own.ProcessState.ExitCode()
			return clierror.New(clierror.Code(max(code, 1)),
				"sudo inferscope doctor says what this machine lacks",
				fmt.Errorf("the daemon ended at once: %s", w.lastWords()))
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(end) {
			return clierror.New(clierror.NoDaemon, "look at the machine's load",
				fmt.Errorf("the daemon does not answer after %s: %s", settleTime, w.lastWords()))
		}
	}
}

// explain adds the daemon's log to an error that says that a temporary daemon does not answer: the log goes with it.
func (w *watcher) explain(err error) error {
	if w == nil || w.own == nil || clierror.CodeOf(err) != clierror.NoDaemon {
		return err
	}
	return clierror.New(clierror.NoDaemon, "look at the machine's load, and try again",
		fmt.Errorf("%w; this command started it, and it logged: %s", err, w.lastWords()))
}

// lastWords returns the end of the daemon's log.
func (w *watcher) lastWords() string {
	const most = 2000 // bytes
	text, err := os.ReadFile(w.log())
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text[max(0, len(text)-most):]))
}

// warnings returns the warnings of a temporary daemon that reports do not contain.
func (w *watcher) warnings(ctx context.Context) ([]string, error) {
	if w.own == nil {
		return nil, nil
	}
	st, err := w.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("asking the daemon for its warnings: %w", err)
	}
	var out []string
	for i := range st.Warnings {
		if one := &st.Warnings[i]; !one.Reported {
			out = append(out, one.String())
		}
	}
	if st.WarningsOmitted > 0 {
		out = append(out, fmt.Sprintf("%d older warnings of the daemon are not kept", st.WarningsOmitted))
	}
	return out, nil
}

// close ends a temporary daemon; a running one is left alone.
func (w *watcher) close() error {
	if w.Client != nil {
		w.Close()
	}
	if w.own == nil {
		return nil
	}
	_ = w.own.Process.Signal(unix.SIGTERM) // it may have ended
	select {
	case <-w.ended:
	case <-time.After(settleTime):
		_ = w.own.Process.Kill() // does no harm: its link holder takes its probes off
		<-w.ended
	}
	if err := os.RemoveAll(w.dir); err != nil {
		return fmt.Errorf("removing the daemon's folder: %w", err)
	}
	return nil
}

// daemonProgram finds inferscoped: in the directory of this program, else on the PATH.
func daemonProgram() (string, error) {
	const name = "inferscoped"
	if self, err := os.Executable(); err == nil {
		path := filepath.Join(filepath.Dir(self), name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", clierror.New(clierror.NoDaemon, "install it beside inferscope, or start it yourself",
			fmt.Errorf("no daemon runs, and none can be started: %w", err))
	}
	return path, nil
}
