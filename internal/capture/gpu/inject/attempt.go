package inject

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/clock"
)

// attempt tries to bring the image in through one thread. It works on an operating
// system thread of its own, which ends with it: whatever is still traced then, the
// kernel lets go of, without a signal and without interrupting its system call.
func (pl *plan) attempt(ctx context.Context, c caller) (Result, error) {
	done := make(chan outcome, 1)
	k := &tracee{plan: pl, made: pl.made}
	go onOwnThread(func() {
		result, err := k.try(ctx, c)
		done <- outcome{result, err}
	})
	select {
	case o := <-done:
		return pl.take(k, o)
	case <-ctx.Done():
	}
	for {
		select {
		case o := <-done:
			return pl.take(k, o)
		case <-time.After(time.Second):
		}
		// A thread that was sent its signal and does not stop is frozen (a paused container); it is
		// left to the kernel, and to the attempt, which lets go of it whenever it thaws.
		if k.given.CompareAndSwap(0, givenUp) {
			return Result{}, &Refusal{
				Reason: ErrStopped,
				Detail: "its thread does not come to its stop",
				Hint:   "unfreeze it, if its container is paused",
				Cause:  ctx.Err(),
			}
		}
	}
}

// take keeps the file for the next attempt.
func (pl *plan) take(k *tracee, o outcome) (Result, error) {
	pl.made = k.made
	return o.result, o.err
}

// outcome is what an attempt came to.
type outcome struct {
	result Result
	err    error
}

// What becomes of a thread: whoever sets it first decides.
const (
	inUse = iota + 1 // it stands where it should, and is used
	givenUp
)

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

// setRealTimePriority makes this operating system thread run before ordinary ones: what it waits for a processor the
// target waits too. It then sleeps until the target does something, so that it needs little. Without CAP_SYS_NICE or
// RLIMIT_RTPRIO (sched(7)) it stays ordinary, and slower: false.
func setRealTimePriority() bool { return setPolicy(unix.SCHED_FIFO, 1) == nil }

// setNormalPriority ends that, where nobody waits for it.
func setNormalPriority() { _ = setPolicy(unix.SCHED_NORMAL, 0) }

// setPolicy sets the policy of this thread alone: what it starts may need a processor for long.
func setPolicy(policy, priority uint32) error {
	return unix.SchedSetAttr(0, &unix.SchedAttr{
		Size: unix.SizeofSchedAttr, Policy: policy, Priority: priority, Flags: unix.SCHED_FLAG_RESET_ON_FORK,
	}, 0)
}

// tracee is one thread, traced, and what is known about it.
type tracee struct {
	*plan
	made   *made
	thread *thread
	stack  area
	signal unix.Signal

	ownTID uint32       // its id in the procfs at its /proc
	given  atomic.Int32 // inUse, givenUp, or 0

	armed          bool
	pendingSignals bool      // the thread has signals of its own
	regs           registers // at the stop
	mask           uint64
	call           bpf.ArmArmStop
	f              frame
}

// try seizes the thread, lets it run into the trap, and uses it: once to make the file, where
// there is none yet, and once to load it.
func (k *tracee) try(ctx context.Context, c caller) (Result, error) {
	if err := k.preceded(); err != nil {
		return Result{}, err
	}
	setRealTimePriority()
	if err := k.capture(c); err != nil {
		return Result{}, err
	}
	k.steps = k.steps[:0]
	if err := k.getFile(ctx); err != nil {
		return Result{}, err
	}
	if err := k.visit(ctx, k.load); err != nil {
		return Result{}, err
	}
	result := Result{
		Stopped: k.stopped, At: k.call.At, Thread: k.thread.tid, FD: k.made.file,
		Started: k.start != 0, Steps: k.steps,
	}
	k.made = nil
	return result, nil
}

// getFile makes the thread make the file, unless it is there; it may be there soon.
func (k *tracee) getFile(ctx context.Context) error {
	if k.made == nil && k.sent { // a thread that was sent for it has gone or been given up since
		if err := k.findFile(); err != nil {
			return err
		}
	}
	if k.made != nil {
		return nil
	}
	if err := k.visit(ctx, k.makeFile); err != nil {
		return err
	}
	return k.awaitFile()
}

// load makes the stopped thread load the file.
func (k *tracee) load() error {
	if err := k.mustHaveFile(); err != nil {
		return err
	}
	if err := k.stamp(k.made); err != nil {
		return k.release(err)
	}
	return k.handOver()
}

// visit waits until the thread stands in the trap, and uses it there.
func (k *tracee) visit(ctx context.Context, use func() error) error {
	if err := k.runToStopPoint(ctx); err != nil {
		return err
	}
	k.step("stopped")
	if !k.given.CompareAndSwap(0, inUse) {
		return k.release(errNotCalled)
	}
	err := use()
	k.given.Store(0)
	return err
}

// capture looks at the thread, and begins to trace it.
func (k *tracee) capture(c caller) error {
	pid := int(k.process.PID)
	s, err := readStatus(pid, c.tid)
	if err != nil || s.tgid != k.process.PID {
		return errThreadGone
	}
	if err := notTraced(nil, s); err != nil {
		return err
	}
	if k.level >= len(s.nstids) {
		return errThreadGone
	}
	k.ownTID = s.nstids[k.level]
	if s.seccomp == 1 {
		return refuse(errSeccomp, "strict mode", hintStart)
	}
	if k.signal = signalFor(s); k.signal == 0 {
		return refuse(errSignal, "its thread blocks them", hintStart)
	}
	if k.stack, err = stackOf(pid, c.tid, c.Sp, c.Tls); err != nil {
		return &Refusal{Reason: ErrStack, Cause: err, Hint: hintStart}
	}
	if !k.stack.room(c.Sp) {
		return refuse(
			ErrStack,
			fmt.Sprintf("%d bytes are left of it, %d are needed", c.Sp-k.stack.low, roomNeeded),
			"give its threads larger stacks",
		)
	}
	if err := k.guard(); err != nil {
		return err
	}
	if k.thread, err = seize(c.tid); err != nil {
		return denied(pid, err)
	}
	k.step("seized")
	if !k.process.Alive() {
		return errThreadGone
	}
	return nil
}

// runToStopPoint arms the trap and waits until the thread stands in it. What else stops the thread
// meanwhile, a signal of its own, is let pass. Where no other thread calls it is waited for as long as
// ctx allows: one that answers a request each second makes no call for most of one. Not where it has
// signals of its own: each of them would have to wait for us.
func (k *tracee) runToStopPoint(ctx context.Context) error {
	if err := k.stopPoint.arm(k.thread.tid, k.signal); err != nil {
		return err
	}
	k.armed = true
	since, turn, pause := clock.Monotonic(), time.Now().Add(patience), look
	for {
		err := k.sprung(time.Now().Add(pause))
		if err == nil {
			return k.waitHere()
		}
		if errors.Is(err, errNotCalled) && ctx.Err() == nil && !k.inVain(since, &turn, &pause) {
			ours, failed := k.pass()
			if ours && k.sprung(time.Now()) == nil {
				return k.arrived()
			}
			if ours { // somebody else's
				k.pendingSignals = true
				failed = k.thread.resume(k.signal)
			}
			if failed == nil {
				continue
			}
			err = failed
		}
		k.armed = false
		return errors.Join(err, k.stopPoint.disarm())
	}
}

// inVain reports whether it is no use to wait any longer, because another thread has called since the armed one
// was armed, or no good. It looks when a turn is over; in the turns after the first there is no hurry.
func (k *tracee) inVain(since uint64, turn *time.Time, pause *time.Duration) bool {
	if time.Now().Before(*turn) {
		return k.pendingSignals && *pause == lookLater
	}
	*turn, *pause = time.Now().Add(patience), lookLater
	if k.pendingSignals {
		return true
	}
	callers, err := k.stopPoint.callers()
	return err != nil ||
		slices.ContainsFunc(callers, func(c caller) bool { return c.tid != k.thread.tid && c.Seen > since })
}

// sprung waits for the program's word that the thread was sent its signal.
func (k *tracee) sprung(deadline time.Time) error {
	call, err := k.stopPoint.await(deadline)
	if err != nil {
		return err
	}
	k.armed, k.call = false, call
	k.steps = append(k.steps, Step{called, call.At})
	k.step("signalled")
	return nil
}

// look is how often it is looked whether an armed thread is still there, or stopped by something
// else; the wait itself is cut down to whole milliseconds.
const (
	look      = 2 * time.Millisecond
	lookLater = 20 * time.Millisecond // when it has made no call for a while
)

// waitHere waits for the stop. Signals that come first are delivered as they are.
func (k *tracee) waitHere() error {
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
			return k.arrived()
		}
		if err != nil {
			return k.lost(err)
		}
	}
}

// arrived is called when the thread stands still.
func (k *tracee) arrived() error {
	k.step("halted")
	return k.look()
}

// lost says that the thread ended while it was stopped, if that is why err happened:
// only SIGKILL, or an exec of another thread, does that.
func (k *tracee) lost(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return errThreadGone
	}
	return err
}

// look finds out whether the thread stands where it was sent the signal, and nowhere
// else: not in a handler, not in a system call.
func (k *tracee) look() error {
	var err error
	if k.regs, err = k.thread.registers(); err != nil {
		return k.release(err)
	}
	inside, err := k.thread.inSyscall(&k.regs)
	switch {
	case err != nil:
		return k.release(err)
	case !k.regs.native():
		return k.release(refuse(errClass, "it runs 32-bit code", hintClass))
	case k.thread.shadowed():
		return k.release(
			refuse(
				errShadow,
				"its guarded control stack is on",
				"start it with GLIBC_TUNABLES=glibc.cpu.aarch64_gcs=0, or with `inferscope run`",
			),
		)
	case inside,
		k.call.Sp-k.regs.sp() > 16: // a push, or a call, was the probed instruction; a handler's frame is larger
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
func (k *tracee) release(err error) error {
	if err == nil {
		return nil
	}
	if e := k.thread.detach(0); e != nil && !errors.Is(e, unix.ESRCH) {
		err = errors.Join(err, e)
	}
	k.stopped += time.Duration(clock.Monotonic() - k.call.At)
	if errors.Is(err, unix.ESRCH) {
		return errThreadGone
	}
	return err
}

// mayCall asks the thread's seccomp filters. Unless they can be read they are taken
// to forbid: a call that they punish with death cannot be tried. What may not ask ptrace for
// them, such as a daemon in a container, takes the copy that the thread made as it was stopped.
func (k *tracee) mayCall() error {
	const hint = "allow what the default profile of Docker allows (memfd_create, mmap, clone), or start the program " +
		"with `inferscope run`"
	filters, err := k.thread.filters()
	if errors.Is(err, unix.EACCES) {
		var failed error
		if filters, failed = k.stopPoint.filters(&k.call); failed == nil {
			err = nil
		} else {
			err = errors.Join(err, failed)
		}
	}
	if err != nil {
		return &Refusal{
			Reason: errSeccomp,
			Detail: "it cannot be read, so what it does to a forbidden call is not known",
			Hint:   "give the daemon CAP_SYS_ADMIN and no seccomp filter of its own",
			Cause:  err,
		}
	}
	if err := allowed(filters, calls()); err != nil {
		return &Refusal{Reason: errSeccomp, Hint: hint, Cause: err}
	}
	return nil
}
