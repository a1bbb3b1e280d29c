package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/api"
	"github.com/inferscope/inferscope/internal/fault"
)

// watcher is the daemon that watches the program: one that runs, or one of our own.
type watcher struct {
	*api.Client
	own   *exec.Cmd     // nil: it was there
	dir   string        // of our own: its socket and its log
	ended chan struct{} // closed when our own has ended
}

// attach finds the daemon, or starts one.
func (g *global) attach(j *job) (*watcher, error) {
	client, err := g.dial()
	if err == nil {
		if j.flags.gpu != "" || j.flags.traceMB != "" || j.flags.sampleHz != "" {
			fmt.Fprintf(g.stderr, "inferscope: warning: the daemon on %s has settings of its own: --gpu, --trace-size-mb and --cpu-sampling-frequency-hz are not heeded\n", g.socket)
		}
		return &watcher{Client: client}, nil
	}
	if fault.CodeOf(err) != fault.NoDaemon {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, fault.New(fault.NoDaemon,
			"start one for all users with: sudo inferscoped --on-request; or run this as root: sudo inferscope run ...", err)
	}
	return g.startDaemon(j)
}

// settleTime is how long a daemon may take to load its programs into the kernel, on a slow machine.
const settleTime = time.Minute

// startDaemon starts a daemon for one program. It ends with this process, however that ends.
func (g *global) startDaemon(j *job) (*watcher, error) {
	path, err := beside("inferscoped")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "inferscope-run-")
	if err != nil {
		return nil, fmt.Errorf("making a folder for a daemon: %w", err)
	}
	w := &watcher{dir: dir, ended: make(chan struct{})}
	log, err := os.Create(w.log())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making the daemon's log: %w", err), os.RemoveAll(dir))
	}
	defer log.Close()
	w.own = exec.Command(path, append([]string{"--on-request", "--keep", "24h", "--socket", w.socket()}, j.daemonFlags()...)...) //nolint:noctx // it ends by close
	w.own.Stdout, w.own.Stderr, w.own.Env = log, log, g.environ
	// A group of its own: Ctrl-C is the program's, and the daemon is needed after it.
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
			return fault.New(fault.Code(max(code, 1)), "it is started by `inferscope run`, as root, where no daemon is there", fmt.Errorf("the daemon ended at once: %s", w.lastWords()))
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(end) {
			return fault.New(fault.NoDaemon, "look at the machine's load", fmt.Errorf("the daemon does not answer after %s: %s", settleTime, w.lastWords()))
		}
	}
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

// notCovered begins what a daemon says of a process that has just begun and maps its libraries one
// by one, again and again; what stays uncovered is among the report's losses.
const notCovered = "a process is not covered"

// warnings returns what the daemon of our own warned of, for people.
func (w *watcher) warnings() []string {
	if w.own == nil {
		return nil
	}
	f, err := os.Open(w.log())
	if err != nil {
		return nil
	}
	defer f.Close()
	text, _ := io.ReadAll(io.LimitReader(f, 1<<20)) // what could be read is shown
	var out []string
	for line := range strings.Lines(string(text)) {
		// The console form of a line: time, level, message, fields, with tabs between.
		if fields := strings.SplitN(strings.TrimSpace(line), "\t", 3); len(fields) == 3 && (fields[1] == "warn" || fields[1] == "error") && !strings.HasPrefix(fields[2], notCovered) {
			out = append(out, strings.ReplaceAll(fields[2], "\t", " "))
		}
	}
	return out
}

// close ends a daemon of our own, and leaves another one alone.
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
		_ = w.own.Process.Kill() // does no harm: the kernel takes its probes off
		<-w.ended
	}
	if err := os.RemoveAll(w.dir); err != nil {
		return fmt.Errorf("removing the daemon's folder: %w", err)
	}
	return nil
}

// beside finds another program of this project: next to this one, else on the PATH.
func beside(name string) (string, error) {
	if self, err := os.Executable(); err == nil {
		path := filepath.Join(filepath.Dir(self), name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fault.New(fault.NoDaemon, "install it beside inferscope, or start it yourself", fmt.Errorf("no daemon runs, and none can be started: %w", err))
	}
	return path, nil
}
