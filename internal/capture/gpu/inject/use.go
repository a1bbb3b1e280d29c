package inject

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/procfile"
)

// A thread is stopped twice, and lets nobody wait for it while it is: what a stopped thread has
// to run itself, to make a system call and stop again behind it, it runs when its turn comes, and
// on a machine with others to run that was milliseconds. So the first time it is sent off to
// make the file, the second time, at its next call, to load it; between the two it is at its own work,
// and the file is filled.

// makeFile sends the stopped thread off to make the file that will hold the image.
func (k *tracee) makeFile() error {
	if err := k.prepare(k.name); err != nil {
		return err
	}
	r := k.regs.systemCall(k.entries.gadget, k.entries.restorer, &k.f, unix.SYS_MEMFD_CREATE, k.f.text, k.flags)
	k.sent = true
	return k.send(r, func() error { return k.thread.resume(0) })
}

// handOver sends the stopped thread into dlopen, or the image's own entry, and ends the
// tracing. From here on it is alone.
func (k *tracee) handOver() error {
	if err := k.prepare(fmt.Sprintf(k.path, k.ownTID, k.made.fd)); err != nil {
		return err
	}
	next := k.regs.call(k.start, k.entries.restorer, &k.f, uint64(k.made.fd))
	if k.start == 0 {
		next = k.regs.call(k.entries.dlopen, k.entries.restorer, &k.f, k.f.text, k.entries.mode)
	}
	return k.send(next, func() error { return k.thread.detach(0) })
}

// prepare writes the frame that the thread will return through onto its stack, with a text in it.
func (k *tracee) prepare(text string) error {
	var err error
	if k.f, err = k.thread.frame(&k.regs, k.mask, k.entries.restorer); err != nil {
		return k.release(err)
	}
	k.f.setText(text)
	if err := k.write(k.f.data, k.f.at); err != nil {
		return k.release(err)
	}
	k.step("frame written")
	return nil
}

// send gives the thread other registers and lets it go. All signals that may wait do so until it
// comes to the frame, which gives it its own mask back.
func (k *tracee) send(r registers, letGo func() error) error {
	if err := k.thread.setRegisters(r); err != nil {
		return k.release(err)
	}
	k.step("registers set")
	if err := k.thread.block(heldBack(k.mask)); err != nil {
		return k.release(err) // it makes its call with its own mask
	}
	k.step("signals blocked")
	if err := letGo(); err != nil {
		return k.lost(err)
	}
	k.stopped += time.Duration(clock.Monotonic() - k.call.At)
	k.step("let go")
	return nil
}

// write puts bytes on the thread's stack, which it may have to make longer.
func (k *tracee) write(b []byte, at uint64) error {
	mem := memory{int(k.process.PID)}
	err := mem.write(b, at)
	if err == nil || !k.stack.grows {
		return err
	}
	if err := k.thread.poke(down(at, 8), 0); err != nil {
		return err
	}
	return mem.write(b, at)
}

// fileIn is how long a thread has to make the file before it is stopped again, which it then has.
const fileIn = 20 * time.Millisecond

// awaitFile looks for the file while the thread runs, and fills it.
func (k *tracee) awaitFile() error {
	setNormalPriority() // a process may have thousands of descriptors to look at
	defer setRealTimePriority()
	for deadline := time.Now().Add(fileIn); k.made == nil && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
		if _, err := k.pass(); err != nil {
			return err
		}
		if err := k.findFile(); err != nil {
			return err
		}
	}
	return nil
}

// findFile looks for the file that the thread was to make, by its name, and fills it.
func (k *tracee) findFile() error {
	open, err := procfile.Descriptors(k.process.PID, k.name)
	if err != nil {
		return gone(k.process, err)
	}
	for _, f := range open {
		if f.Name != k.name {
			continue
		}
		k.step("file made")
		k.made, err = k.fill(f)
		k.step("file filled")
		return err
	}
	return nil
}

// mustHaveFile is asked of a thread that was sent off before, and stands still again.
func (k *tracee) mustHaveFile() error {
	if k.made != nil {
		return nil
	}
	if err := k.findFile(); err != nil || k.made != nil {
		return k.release(err)
	}
	return k.release(
		refuse(errMemory, "its memfd_create gave it none: it is forbidden, or no descriptor is left", hintStart),
	)
}

// alone gives way to a debugger that has come meanwhile. It traces the first thread before all others, keeps that
// stopped, and tries without an end to trace the one that is traced by us.
func (k *tracee) alone() error {
	pid := int(k.process.PID)
	if k.thread.tid == pid {
		return nil
	}
	s, err := readStatus(pid, pid)
	if err != nil {
		return gone(k.process, err)
	}
	return notTraced(nil, s)
}

// pass takes a stop of the thread, if there is one, and lets it run on: it is no stop of ours.
// It returns the one that may be, with the thread still in it.
func (k *tracee) pass() (ours bool, err error) {
	s, ok, err := k.thread.poll()
	switch {
	case err != nil:
		return false, err
	case !ok:
		return false, k.alone()
	case s.ended:
		return false, errThreadGone
	case s.group: // SIGCONT brings a notice
		err = k.thread.listen()
	case s.notice:
		err = k.thread.resume(0)
	case s.signal == k.signal && k.armed:
		return true, nil
	default:
		k.pendingSignals = true
		err = k.thread.resume(s.signal)
	}
	if errors.Is(err, unix.ESRCH) {
		return false, errThreadGone
	}
	return false, err
}
