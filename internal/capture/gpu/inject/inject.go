// Package inject brings an image, a shared object, into a running process: it stops one
// thread of it for a fraction of a millisecond at the entry of a CUDA function, makes that
// thread make a memory file, and at its next call load that with dlopen, and lets go of it.
//
// The thread's own stack holds a signal frame with all of its registers before
// anything else is changed, and every function that it is made to enter returns through
// that frame. So the thread goes on where it was by itself: nobody has to give it back
// its registers, and killing this process with SIGKILL, at any instant, harms nobody.
// No other thread is ever stopped.
//
// The package knows nothing of what the image does.
package inject

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/procfile"
	"github.com/inferscope/inferscope/internal/capture/relocation"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
)

// Image is what is injected.
type Image struct {
	Bytes []byte // a shared object for this machine
	// ParamsOffset is where in Bytes the parameters lie.
	ParamsOffset int
	// Params are the parameters, but for two that are known only while the thread is
	// stopped. FDAt is the offset of the first in Params: int32, the descriptor of the file
	// that holds them in the target. NowAt is that of the second: uint64, the time,
	// CLOCK_MONOTONIC ns; 0: there is none.
	Params      []byte
	FDAt, NowAt int
	// StartOffset is the address in the image (a virtual address of the ELF file) of a
	// function that takes the descriptor of a file with the parameters at its
	// beginning. It is called instead of a second dlopen where an image of this
	// BuildID is mapped already; 0: there is none, the image is always loaded anew.
	StartOffset uint64
	BuildID     [20]byte // of the image, as its GNU note says
	Size        int64    // of the file in the target, bytes; 0: that of Bytes
	// Sign is the name of a memory file that an image of this kind makes when it starts. Where the target has one open
	// that is not among Known (inode numbers), such an image has come in by itself meanwhile, and Load refuses
	// (ErrPreceded). "": none is looked for.
	Sign  string
	Known []uint64
}

// Result says what was done. The image may still be starting.
type Result struct {
	Stopped time.Duration // from a thread's CUDA call until it was let go of, all stops together
	At      uint64        // CLOCK_MONOTONIC ns of the last of these calls
	Thread  int           // that was stopped, as the host counts
	FD      *os.File      `json:"-"` // the same file, open for reading and writing; the caller closes it
	Started bool          // the image was there already, and was started again
	Steps   []Step        // what was done when, from the thread's call on
}

// Options are the settings of New.
type Options struct {
	LinkHolder *uprobe.LinkHolder // makes and holds the probes of that program; nil: whoever stops the thread does
	Mode       uprobe.Mode        // how to attach the program that stops a thread; "" finds the best
}

// Injector brings images into processes. It is safe for concurrent use.
type Injector struct {
	linkHolder *uprobe.LinkHolder // nil: none
	mode       uprobe.Mode
	changes    []relocation.Change // what this kernel changes in the program; none: that is found out when it is loaded
	guard      func() error        // called before a thread is traced
	step       func(string)        // called after each step; tests die there

	closing sync.WaitGroup // of traps
	mu      sync.Mutex
	left    error // why some of them could not be taken off; guarded by mu
}

// New makes an Injector. It fails where no way to attach works.
func New(opts Options) (*Injector, error) {
	in := &Injector{
		linkHolder: opts.LinkHolder,
		mode:       opts.Mode,
		step:       func(string) {},
		guard:      func() error { return nil },
	}
	if in.mode != "" {
		return in, nil
	}
	mode, err := uprobe.Detect()
	if err != nil {
		return nil, fmt.Errorf("bring an image into a process: %w", err)
	}
	in.mode = mode
	return in, nil
}

const (
	// patience is how long an armed thread has to make a call before another one that has made one is tried.
	patience = 200 * time.Millisecond
	// maxMoves bounds how often a thread may be found in the wrong place.
	maxMoves = 20
	// maxBlocked is how often a thread is tried that blocks all signals: each does when it begins and when it ends
	// (glibc).
	maxBlocked = 3
	// Once all threads that call CUDA were refused, calls are watched for lookRefused, for the sake of another thread, and
	// left alone for restRefused.
	lookRefused, restRefused = 300 * time.Millisecond, 3 * time.Second
	// maxRefused bounds how many threads are looked at that have no stack that can be used.
	maxRefused = 1 << 12
)

// Load brings the image into p. It waits, until ctx is done, for p to call CUDA
// (ErrIdle). What it returns as an error says why p was left alone: see Refusal.
// What the image does with its parameters it says in the file (Await).
// The probes come off behind its back: see Wait.
func (in *Injector) Load(ctx context.Context, p *proc.Process, image Image) (Result, error) {
	result, err := in.load(ctx, p, &image)
	if err != nil {
		return result, fmt.Errorf("pid %d: %w", p.PID, gone(p, err))
	}
	return result, nil
}

func (in *Injector) load(ctx context.Context, p *proc.Process, image *Image) (Result, error) {
	plan, err := in.prepare(p, image)
	if err != nil {
		return Result{}, err
	}
	if plan.stopPoint, err = in.setStopPoint(p); err != nil {
		return Result{}, err
	}
	plan.step("armed")
	plan.reuse()
	result, err := in.run(ctx, plan)
	if err != nil {
		err = errors.Join(err, plan.give())
	}
	if plan.stopPoint != nil {
		in.takeOff(plan.stopPoint)
	}
	return result, err
}

// run tries threads until one has injected the image. While all that call CUDA have been refused, each of their calls
// would pay for the probe: they are looked at for a moment at a time.
func (in *Injector) run(ctx context.Context, plan *plan) (Result, error) {
	refused := map[int]error{}
	for {
		result, err := plan.run(ctx, refused)
		if !errors.Is(err, errAllRefused) {
			return result, err
		}
		in.takeOff(plan.stopPoint)
		plan.stopPoint = nil
		select {
		case <-ctx.Done():
			return Result{}, plan.idle(refused, ctx.Err())
		case <-time.After(restRefused):
		}
		if plan.stopPoint, err = in.setStopPoint(plan.process); err != nil {
			return Result{}, err
		}
		plan.step("armed")
	}
}

// takeOff takes a trap's probes off, while the image, which hears nothing until whoever brought it in knows that it is
// there, is already waited for.
func (in *Injector) takeOff(t *stopPoint) {
	in.closing.Go(func() {
		in.step("coming off")
		err := t.close()
		in.mu.Lock()
		defer in.mu.Unlock()
		in.left = errors.Join(in.left, err)
	})
}

// Wait returns when the probes of all that was loaded are off, with why some could not be taken off. That takes a grace
// period of the kernel: tens of ms, up to seconds where all CPUs are taken.
func (in *Injector) Wait() error {
	in.closing.Wait()
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.left == nil {
		return nil
	}
	return fmt.Errorf("take the probes off: %w", in.left)
}

// plan is all that is known before a thread is stopped.
type plan struct {
	process   *proc.Process
	image     *Image
	entries   entries
	start     uint64           // entry of the image that is mapped already; 0: load it
	name      string           // of the file that will hold it
	path      string           // to dlopen, with %d for the thread that does, and for the descriptor
	level     int              // pid namespace of the procfs at its /proc, among those it is in; 0 is the outermost
	flags     uint64           // of memfd_create
	leakedFDs []procfile.Memfd // files that a daemon before us left open there
	stopped   time.Duration    // all stops so far
	sent      bool             // a thread was sent to make the file
	made      *made            // the file; nil: it is not there yet
	stopPoint *stopPoint
	guard     func() error // called before a thread is traced
	hook      func(string) // called after each step
	steps     []Step       // the last maxSteps
	moves     int
	blocked   map[int]int // by thread: attempts that found it without a signal to stop it by
	tries     int         // attempts that found the thread elsewhere
	last      error       // why the last of them failed
}

// run tries one thread after the other, but for those that were refused.
func (pl *plan) run(ctx context.Context, refused map[int]error) (Result, error) {
	for {
		candidates, err := pl.stopPoint.candidates(ctx, refused)
		if errors.Is(err, errAllRefused) {
			return Result{}, err
		}
		if err != nil {
			return Result{}, pl.idle(refused, err)
		}
		c := candidates[0]
		result, err := pl.attempt(ctx, c)
		switch {
		case err == nil:
			return result, nil
		case errors.Is(err, errNotCalled), errors.Is(err, errWrongPlace), errors.Is(err, errThreadGone):
			err = pl.again(c, err)
		case errors.Is(err, errSignal):
			if pl.blocked[c.tid]++; pl.blocked[c.tid] > maxBlocked {
				refused[c.tid] = err
			}
			err = pl.again(c, err)
		case errors.Is(err, ErrStack) && len(refused) < maxRefused:
			refused[c.tid], err = err, nil
		}
		if err != nil {
			return Result{}, err
		}
	}
}

// again makes a thread wait for its next call before it is tried again.
func (pl *plan) again(c caller, why error) error {
	pl.tries, pl.last = pl.tries+1, why
	if errors.Is(why, errWrongPlace) {
		if pl.moves++; pl.moves > maxMoves {
			return refuse(ErrMoved, "", "try again")
		}
	}
	return pl.stopPoint.forget(c.tid)
}

// idle says why no thread was found in time.
func (pl *plan) idle(refused map[int]error, err error) error {
	if !pl.process.Alive() {
		return &Refusal{Reason: ErrGone}
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	for _, why := range refused {
		if errors.Is(why, ErrStack) || errors.Is(why, errSignal) {
			return why
		}
	}
	idle := &Refusal{Reason: ErrIdle, Hint: "it is tried again at its next call", Cause: err}
	if pl.tries > 0 {
		idle.Detail = fmt.Sprintf("after %d attempts (%v)", pl.tries, pl.last)
	}
	return idle
}
