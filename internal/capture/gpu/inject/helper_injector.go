package inject

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/inferscope/inferscope/internal/capture/helper"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/relocation"
)

// HelperInjector injects images as an Injector does, but each from a helper process. The stopped thread of the target
// waits for our thread, which in this process could be delayed by goroutines and the garbage collector, by 10 ms each
// if one thread runs all Go code. In the helper nothing else runs (go test -bench Tail ./internal/capture/gpu/inject
// prints both). It is safe for concurrent use.
type HelperInjector struct {
	command []string
	opts    Options
	helpers sync.WaitGroup
	changes func() []relocation.Change // of the program, for this kernel

	mu   sync.Mutex
	left error // how helpers ended that had answered; guarded by mu
}

// NewHelperInjector returns a HelperInjector. command starts a program that calls RunHelper with the arguments after
// HelperArgument.
func NewHelperInjector(command []string, opts Options) (*HelperInjector, error) {
	in, err := New(opts) // finds the way to attach once, and says here what is missing
	if err != nil {
		return nil, err
	}
	opts.Mode = in.mode
	return &HelperInjector{command: command, opts: opts, changes: sync.OnceValue(fitted)}, nil
}

const (
	// maxAnswer bounds what is read of a helper, bytes: it deals with what is not trusted.
	maxAnswer = 64 << 10
	// lastWord is how long a helper that was told to give up has to say how it ended. It
	// gives a thread that does not come to its stop one second (late). So long it has, too, to end after its answer.
	lastWord = 5 * time.Second
	// maxTries bounds how many helpers are started where one after the other is killed.
	maxTries = 3
)

// Load is Injector.Load. When ctx is done the helper gives up as an Injector does, and
// what it did until then counts.
func (a *HelperInjector) Load(ctx context.Context, p *proc.Process, image Image) (Result, error) {
	done := make(chan outcome, 1)
	a.helpers.Go(func() { a.drive(ctx, p, &image, done) })
	o := <-done
	return o.result, o.err
}

// Wait is Injector.Wait: every helper has ended when it returns.
func (a *HelperInjector) Wait() error {
	a.helpers.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.left
}

// drive hands on what a helper says as soon as it says it, and waits for its end.
func (a *HelperInjector) drive(ctx context.Context, p *proc.Process, image *Image, done chan<- outcome) {
	// It dies with this process, however that ends, so that nothing comes into a target behind a
	// dead daemon; the kernel counts the thread that started it for its parent (prctl(2)).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for try := 1; ; try++ {
		conn, cmd, err := a.launch(ctx)
		if err != nil {
			done <- outcome{err: fmt.Errorf("start the process that brings the agent in: %w", err)}
			return
		}
		result, err := a.ask(ctx, conn, p, image)
		again := errors.Is(err, errNoAnswer) && ctx.Err() == nil && try < maxTries
		if !again {
			done <- outcome{result, err}
		}
		_ = conn.Close() // one that has not answered gives up
		ended := a.await(cmd)
		if again && killed(cmd.ProcessState) {
			continue
		}
		if again {
			done <- outcome{result, err}
		}
		if err == nil && ended != nil && cmd.ProcessState.Exited() {
			a.failed(fmt.Errorf("the process that injected the agent into pid %d: %w", p.PID, ended))
		}
		return
	}
}

// await waits for the end of a helper: it takes its probes off; of one that is killed the link holder does.
func (a *HelperInjector) await(cmd *exec.Cmd) error {
	late := time.AfterFunc(lastWord, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	return cmd.Wait()
}

// killed reports whether a helper had no processor for too long (startWatchdog), or was killed by somebody.
func killed(state *os.ProcessState) bool {
	status, ok := state.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

func (a *HelperInjector) failed(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left = errors.Join(a.left, err)
}

// ask tells a helper what to do, and waits for its answer.
func (a *HelperInjector) ask(ctx context.Context, conn *net.UnixConn, p *proc.Process, image *Image) (Result, error) {
	stop := context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) { // of that it knows by itself
			_ = conn.CloseWrite() // it gives up
		}
		_ = conn.SetReadDeadline(time.Now().Add(lastWord)) // a unix socket has deadlines
	})
	defer stop()
	ask := request{
		PID:       int(p.PID),
		StartTime: p.StartTime,
		Mode:      a.opts.Mode,
		Kept:      a.opts.LinkHolder != nil,
		Changes:   a.changes(),
		Image:     *image,
	}
	if deadline, ok := ctx.Deadline(); ok {
		ask.Patience = time.Until(deadline)
	}
	if err := json.NewEncoder(conn).Encode(&ask); err != nil && ctx.Err() == nil {
		return Result{}, fmt.Errorf("tell the process that brings the agent in: %w", err)
	}
	return receive(conn)
}

// launch starts a helper. It ends when conn is closed.
func (a *HelperInjector) launch(ctx context.Context) (*net.UnixConn, *exec.Cmd, error) {
	// It outlives ctx, and says how far it came.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), a.command[0], append(a.command[1:], HelperArgument)...)
	var files []*os.File
	if a.opts.LinkHolder != nil {
		linkHolder, err := a.opts.LinkHolder.Share()
		if err != nil {
			return nil, nil, err
		}
		defer linkHolder.Close()
		files = append(files, linkHolder)
	}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL} // Ctrl-C is the daemon's
	conn, err := helper.Inject.Start(cmd, helper.Stream, files...)
	return conn, cmd, err
}

var errNoAnswer = errors.New("the process that brings the agent in ended without an answer")

// receive reads a helper's answer: one byte, with the file where there is one, and JSON.
func receive(conn *net.UnixConn) (Result, error) {
	file, err := receiveFile(conn)
	if err != nil {
		return Result{}, err
	}
	var said answer
	if err := json.NewDecoder(io.LimitReader(conn, maxAnswer)).Decode(&said); err != nil {
		return Result{}, errors.Join(errNoAnswer, err, closeAny(file))
	}
	if err := said.err(); err != nil {
		return said.Result, errors.Join(err, closeAny(file))
	}
	if file == nil {
		return Result{}, fmt.Errorf("%w: it handed over no file", errNoAnswer)
	}
	said.Result.FD = file
	return said.Result, nil
}

func closeAny(f *os.File) error {
	if f == nil {
		return nil
	}
	return f.Close()
}

func receiveFile(conn *net.UnixConn) (*os.File, error) {
	_, files, err := helper.Receive(conn, make([]byte, 1), 1)
	if err != nil {
		return nil, errors.Join(errNoAnswer, err)
	}
	if len(files) == 0 {
		return nil, nil
	}
	return files[0], nil
}
