package inject

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/bpf"
)

// attempt tries to bring the image in through one thread. It works on an operating
// system thread of its own, which ends with it: whatever is still traced then, the
// kernel lets go of, without a signal and without interrupting its system call.
func (pl *plan) attempt(ctx context.Context, c caller) (Result, error) {
	done := make(chan outcome, 1)
	given := &atomic.Int32{}
	go onOwnThread(func() {
		result, err := pl.try(ctx, c, given)
		done <- outcome{result, err}
	})
	select {
	case o := <-done:
		return o.result, o.err
	case <-ctx.Done():
	}
	return pl.late(ctx, done, given)
}

// outcome is what an attempt came to.
type outcome struct {
	result Result
	err    error
}

// What became of an attempt: whoever sets it first decides.
const (
	inUse = iota + 1 // the thread stands where it should, and is used
	givenUp
)

// late gives an attempt a moment more. A thread that was sent its signal and does
// not stop is frozen (a paused container); it is left to the kernel, and to
// the attempt, which lets go of it whenever it thaws.
func (pl *plan) late(ctx context.Context, done <-chan outcome, given *atomic.Int32) (Result, error) {
	select {
	case o := <-done:
		return o.result, o.err
	case <-time.After(time.Second):
	}
	if given.CompareAndSwap(0, givenUp) {
		return Result{}, &Refusal{Reason: ErrStopped, Detail: "its thread does not come to its stop", Hint: "unfreeze it, if its container is paused", Cause: ctx.Err()}
	}
	o := <-done
	return o.result, o.err
}

// onOwnThread runs f on an operating system thread that ends when f has returned.
// The first thread of a program cannot end, so there f runs on another one.
func onOwnThread(f func()) {
	runtime.LockOSThread() // without an unlock: the thread ends with the goroutine
	if unix.Gettid() != unix.Getpid() {
		f()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		onOwnThread(f)
	}()
	<-done
	runtime.UnlockOSThread()
}

// hurry makes this operating system thread, which soon ends, run before ordinary ones:
// what it waits for a processor the target waits too. Without CAP_SYS_NICE it stays
// ordinary.
func hurry() {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
	_ = unix.SchedSetAttr(0, &attr, 0) // it is only slower without
}

// captive is one thread, traced, and what is known about it.
type captive struct {
	*plan
	thread *thread
	stack  area
	signal unix.Signal
	filter bool // under seccomp filters

	regs registers // at the stop
	mask uint64
	call bpf.ArmArmStop
	f    frame
}

// try seizes the thread, lets it run into the trap, and uses it.
func (pl *plan) try(ctx context.Context, c caller, given *atomic.Int32) (Result, error) {
	hurry()
	k, err := pl.capture(c)
	if err != nil {
		return Result{}, err
	}
	if err := pl.spring(ctx, k); err != nil {
		return Result{}, err
	}
	pl.step("stopped")
	if !given.CompareAndSwap(0, inUse) {
		return Result{}, k.release(errNotCalled)
	}
	result, err := k.use()
	if err != nil {
		return Result{}, err
	}
	pl.step("let go")
	return result, nil
}

// capture looks at the thread, and begins to trace it.
func (pl *plan) capture(c caller) (*captive, error) {
	pid := int(pl.process.PID)
	s, err := readStatus(pid, c.tid)
	if err != nil || s.tgid != pl.process.PID {
		return nil, errThreadGone
	}
	if err := notTraced(nil, s); err != nil {
		return nil, err
	}
	k := &captive{plan: pl, filter: s.seccomp != 0}
	if s.seccomp == 1 {
		return nil, refuse(ErrSeccomp, "strict mode", "")
	}
	if k.signal = signalFor(s); k.signal == 0 {
		return nil, refuse(ErrSignal, "its thread blocks them", "start the program with `inferscope run`, which loads the agent at its start")
	}
	if k.stack, err = stackOf(pid, c.tid, c.Sp, c.Tls); err != nil {
		return nil, &Refusal{Reason: ErrStack, Cause: err, Hint: "start the program with `inferscope run`, which loads the agent at its start"}
	}
	if !k.stack.room(c.Sp) {
		return nil, refuse(ErrStack, fmt.Sprintf("%d bytes are left of it, %d are needed", c.Sp-k.stack.low, roomNeeded), "give its threads larger stacks")
	}
	if k.thread, err = seize(c.tid); err != nil {
		return nil, denied(pid, err)
	}
	pl.step("seized")
	if !pl.process.Alive() {
		return nil, errThreadGone
	}
	return k, nil
}

// spring arms the trap and waits until the thread stands in it.
func (pl *plan) spring(ctx context.Context, k *captive) error {
	if err := pl.trap.arm(k.thread.tid, k.signal); err != nil {
		return err
	}
	deadline := time.Now().Add(patience)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	for {
		slice := time.Now().Add(look)
		if slice.After(deadline) {
			slice = deadline
		}
		var err error
		if k.call, err = pl.trap.await(slice); err == nil {
			pl.step("signalled")
			return k.waitHere()
		}
		if errors.Is(err, errNotCalled) && k.thread.ended() {
			err = errThreadGone
		}
		if !errors.Is(err, errNotCalled) || !slice.Before(deadline) {
			return errors.Join(err, pl.trap.disarm())
		}
	}
}

// look is how often it is looked whether an armed thread is still there.
const look = 10 * time.Millisecond

// waitHere waits for the stop. Signals that come first are delivered as they are.
func (k *captive) waitHere() error {
	for {
		s, err := k.thread.wait()
		switch {
		case err != nil:
			return err
		case s.ended:
			return errThreadGone
		case s.group:
			return errors.Join(refuse(ErrStopped, s.signal.String(), "let it run on with SIGCONT"), k.thread.listen())
		case s.notice:
			err = k.thread.resume(0)
		case s.signal != k.signal:
			err = k.thread.resume(s.signal)
		default:
			return k.look()
		}
		if err != nil {
			return k.lost(err)
		}
	}
}

// lost says that the thread ended while it was stopped, if that is why err happened:
// only SIGKILL, or an exec of another thread, does that.
func (k *captive) lost(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return errThreadGone
	}
	return err
}

// look finds out whether the thread stands where it was sent the signal, and nowhere
// else: not in a handler, not in a system call.
func (k *captive) look() error {
	var err error
	if k.regs, err = k.thread.registers(); err != nil {
		return k.release(err)
	}
	inside, err := k.thread.inSyscall(&k.regs)
	switch {
	case err != nil:
		return k.release(err)
	case !k.regs.native():
		return k.release(refuse(ErrClass, "it runs 32-bit code", ""))
	case inside, k.call.Sp-k.regs.sp() > 16: // a push, or a call, was the probed instruction; a handler's frame is larger
		return k.release(errWrongPlace)
	case !k.stack.room(k.regs.sp()):
		return k.release(errWrongPlace) // another coroutine's stack than a moment ago
	}
	if err := k.entries.unchanged(memory{int(k.process.PID)}); err != nil {
		return k.release(err)
	}
	if k.mask, err = k.thread.blocked(); err != nil {
		return k.release(err)
	}
	return k.release(k.mayCall())
}

// release lets the thread go where err is not nil: nothing was changed yet.
func (k *captive) release(err error) error {
	if err == nil {
		return nil
	}
	if e := k.thread.detach(0); e != nil && !errors.Is(e, unix.ESRCH) {
		err = errors.Join(err, e)
	}
	if errors.Is(err, unix.ESRCH) {
		return errThreadGone
	}
	return err
}

// mayCall asks the thread's seccomp filters. Unless they can be read they are taken
// to forbid: a call that they punish with death cannot be tried.
func (k *captive) mayCall() error {
	const hint = "allow what the default profile of Docker allows (memfd_create, mmap, clone), or start the program with `inferscope run`"
	filters, err := k.thread.filters()
	if err != nil && !k.filter {
		return nil // it had none a moment ago
	}
	if err != nil {
		return &Refusal{Reason: ErrSeccomp, Detail: "it cannot be read, so what it does to a forbidden call is not known", Hint: "give the daemon CAP_SYS_ADMIN and no seccomp filter of its own", Cause: err}
	}
	if err := allowed(filters, calls()); err != nil {
		return &Refusal{Reason: ErrSeccomp, Hint: hint, Cause: err}
	}
	return nil
}
