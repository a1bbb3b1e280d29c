package inject

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/inferscope/inferscope/internal/capture/helper"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/relocation"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
)

// HelperArgument is the first argument of a program that is to be the helper of a HelperInjector.
const HelperArgument = "injection-helper"

const (
	// helperLinkHolder is the descriptor on which it finds its parent's link holder, where that has one.
	helperLinkHolder = helper.FirstFile
	// helperThreads run Go code: one that works, one that hears whether the parent is there, the watchdog's, and one
	// to spare: on a busy machine the first two may have lost their processors, and the watchdog's waits for nobody.
	helperThreads = 4
	// helperMemory is how much garbage a helper makes before it collects any, bytes: what it
	// reads of a libcuda and a libc is far less.
	helperMemory = 64 << 20
)

// request is what a helper is asked to do, once.
type request struct {
	PID       int
	StartTime uint64
	Mode      uprobe.Mode
	Kept      bool          // helperLinkHolder is open
	Patience  time.Duration // 0: until the parent gives up
	Changes   []relocation.Change
	Image     Image
}

// answer is what it says of it.
type answer struct {
	Result Result
	Error  string // "": it went well
	Reason int    // of a Refusal, an index into reasons, from 1 on; 0: another error
	Hint   string // of a Refusal
}

// reasons are what a Refusal may say, in an order that both processes know: they are one program.
func reasons() []error {
	return []error{
		ErrIdle, ErrGone, ErrStopped, ErrTraced, errDenied, errSeccomp, errShadow, errClass, errLibc, ErrShared,
		errProc, errSignal, ErrStack, errMemory, errNoCUDA, ErrNoAnswer, ErrMoved, ErrPreceded,
	}
}

// RunHelper is the whole of a helper process. It brings one image into one process, and
// ends; if its parent ends before, however that ends, it gives up.
func RunHelper(args []string) error {
	if len(args) != 0 {
		return errors.New("inferscoped starts this itself; there is nothing to be had from it")
	}
	conn, err := helper.Parent()
	if err != nil {
		return err
	}
	defer conn.Close()
	helper.Inject.Take()
	runtime.GOMAXPROCS(helperThreads)
	debug.SetGCPercent(-1) // a collection, too, is somebody to wait for
	debug.SetMemoryLimit(helperMemory)
	var ask request
	decoder := json.NewDecoder(conn)
	if err := decoder.Decode(&ask); err != nil {
		return fmt.Errorf("read what to do: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		defer cancel() // the parent says nothing more, so this returns when it has given up or is gone
		_, _ = io.Copy(io.Discard, conn)
	}()
	in, err := ask.injector()
	if err != nil {
		return reply(conn, Result{}, err)
	}
	result, err := ask.serve(ctx, in)
	return errors.Join(reply(conn, result, err), in.Wait())
}

func (ask *request) injector() (*Injector, error) {
	opts := Options{Mode: ask.Mode}
	if ask.Kept {
		var err error
		if opts.LinkHolder, err = uprobe.JoinLinkHolder(helperLinkHolder); err != nil {
			return nil, err
		}
	}
	in, err := New(opts)
	if err != nil {
		return nil, err
	}
	// Not before it can hold a thread: to be awake all the time costs more than the rest of a helper's work where the
	// program makes no call.
	in.guard = sync.OnceValue(startWatchdog)
	in.changes = ask.Changes
	return in, nil
}

// serve does what is asked.
func (ask *request) serve(ctx context.Context, in *Injector) (Result, error) {
	if ask.Patience != 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, ask.Patience)
		defer cancel()
	}
	p, err := proc.Describe(ask.PID)
	if err != nil || p.StartTime != ask.StartTime {
		return Result{}, &Refusal{Reason: ErrGone, Cause: err}
	}
	defer func() { _ = p.Close() }() // the process ends soon
	return in.Load(ctx, p, ask.Image)
}

// reply says how it went, and hands over the file.
func reply(conn *net.UnixConn, result Result, err error) error {
	said, fds := answer{Result: result}, []int(nil)
	if err != nil {
		said.fail(err)
	}
	if result.FD != nil {
		defer result.FD.Close()
		fds = append(fds, int(result.FD.Fd()))
	}
	if err := helper.Send(conn, []byte{0}, fds...); err != nil {
		return fmt.Errorf("hand over the file: %w", err)
	}
	if err := json.NewEncoder(conn).Encode(&said); err != nil {
		return fmt.Errorf("say how it went: %w", err)
	}
	return nil
}

// fail writes an error down.
func (a *answer) fail(err error) {
	a.Error, a.Hint = err.Error(), HintOf(err)
	var r *Refusal
	if !errors.As(err, &r) {
		return
	}
	for i, reason := range reasons() {
		if errors.Is(r.Reason, reason) {
			a.Reason = i + 1
		}
	}
}

// err is the error that was written down.
func (a *answer) err() error {
	switch {
	case a.Error == "":
		return nil
	case a.Reason < 1 || a.Reason > len(reasons()):
		return errors.New(a.Error)
	}
	return helper.RemoteError(a.Error, &Refusal{Reason: reasons()[a.Reason-1], Hint: a.Hint})
}
