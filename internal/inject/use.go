package inject

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/clock"
)

// use makes the stopped thread do the work, and lets go of it.
func (k *captive) use() (Result, error) {
	var err error
	if k.f, err = k.thread.frame(&k.regs, k.mask, k.entries.restorer); err != nil {
		return Result{}, k.release(err)
	}
	k.f.setText(fileName)
	if err := k.write(k.f.data, k.f.at); err != nil {
		return Result{}, k.release(err)
	}
	k.step("frame written")
	if err := k.tidy(); err != nil {
		return Result{}, k.undo(err)
	}
	fd, err := k.makeFile()
	if err != nil {
		return Result{}, k.undo(err)
	}
	k.step("file made")
	file, err := k.fill(fd)
	if err != nil {
		return Result{}, k.undo(errors.Join(err, k.closeFile(fd)))
	}
	k.step("file filled")
	if err := k.handOver(fd); err != nil {
		file.Close()
		return Result{}, err
	}
	return Result{
		Stopped: time.Duration(clock.Monotonic() - k.call.At), At: k.call.At, Thread: k.thread.tid,
		TargetFD: fd, FD: file, Where: k.regs.pc(), Started: k.start != 0,
	}, nil
}

// write puts bytes on the thread's stack, which it may have to make longer.
func (k *captive) write(b []byte, at uint64) error {
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

// makeFile lets the thread make the file that will hold the image. All signals that
// may wait do so from here on; the frame gives the thread its own mask back.
func (k *captive) makeFile() (int, error) {
	return k.systemCall(unix.SYS_MEMFD_CREATE, k.f.text, k.flags)
}

// systemCall lets the thread make one system call, and stops it behind it.
func (k *captive) systemCall(number uint64, args ...uint64) (int, error) {
	r := k.regs.systemCall(k.entries.gadget, k.entries.restorer, &k.f, number, args...)
	if err := k.thread.setRegisters(r); err != nil {
		return 0, err
	}
	k.step("registers set")
	if err := k.thread.block(heldBack(k.mask)); err != nil {
		return 0, err
	}
	k.step("signals blocked")
	if err := k.toSyscallStop(); err != nil {
		return 0, err
	}
	k.step("entering")
	if now, err := k.thread.registers(); err != nil || !k.thread.entering(&now, number) {
		return 0, errors.Join(errWrongPlace, err)
	}
	if err := k.toSyscallStop(); err != nil {
		return 0, err
	}
	k.step("left")
	after, err := k.thread.registers()
	if err != nil {
		return 0, err
	}
	if n := after.result(); n < 0 {
		return 0, unix.Errno(-n)
	}
	return int(after.result()), nil
}

// interrupted says that something else than the awaited stop came.
type interrupted struct{ stop }

func (i *interrupted) Error() string {
	if i.ended {
		return errThreadGone.Error()
	}
	return fmt.Sprintf("the thread was interrupted by %v", i.signal)
}

// toSyscallStop lets the thread run to its next stop at a system call.
func (k *captive) toSyscallStop() error {
	for {
		if err := k.thread.resumeToSyscall(); err != nil {
			return err
		}
		s, err := k.thread.wait()
		switch {
		case err != nil:
			return err
		case s.notice:
			continue
		case s.ended || s.group || s.signal != sysStop:
			return &interrupted{s}
		}
		return nil
	}
}

// undo gives the thread its mask and its registers back, in this order: until the
// registers are set the frame would do it. What interrupted us is delivered.
func (k *captive) undo(err error) error {
	var why *interrupted
	var sig unix.Signal
	if errors.As(err, &why) {
		if why.ended {
			return errThreadGone
		}
		if !why.group && why.signal != sysStop {
			sig = why.signal
		}
		err = errors.Join(errWrongPlace, err)
	}
	for _, step := range []func() error{
		func() error { return k.thread.block(k.mask) },
		func() error { return k.thread.setRegisters(k.regs.resumed()) },
		func() error { return k.thread.detach(sig) },
	} {
		if e := step(); e != nil {
			return k.lost(errors.Join(err, e))
		}
	}
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return &Refusal{Reason: ErrMemory, Hint: "start the program with `inferscope run`, which loads the agent at its start", Cause: err}
	}
	return err
}

// fill opens the file of the target and writes image and parameters into it.
func (k *captive) fill(fd int) (*os.File, error) {
	path := fmt.Sprintf("/proc/%d/task/%d/fd/%d", k.process.PID, k.thread.tid, fd)
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open the file in the target: %w", err)
	}
	if err := k.fillFile(file, fd); err != nil {
		return nil, errors.Join(fmt.Errorf("write the file in the target: %w", err), file.Close())
	}
	return file, nil
}

func (k *captive) fillFile(file *os.File, fd int) error {
	params := k.image.Patch(fd)
	if k.start != 0 {
		_, err := file.WriteAt(params, 0)
		return err
	}
	if k.image.Size > int64(len(k.image.Bytes)) {
		if err := file.Truncate(k.image.Size); err != nil {
			return err
		}
	}
	if _, err := file.WriteAt(k.image.Bytes, 0); err != nil {
		return err
	}
	_, err := file.WriteAt(params, int64(k.image.ParamsOffset))
	return err
}

// closeFile takes the file away again.
func (k *captive) closeFile(fd int) error {
	_, err := k.systemCall(unix.SYS_CLOSE, uint64(fd))
	return err
}

// handOver makes the thread enter dlopen, or the image's own entry, and ends the
// tracing. From here on it is alone.
func (k *captive) handOver(fd int) error {
	next := k.regs.call(k.start, k.entries.restorer, &k.f, uint64(fd))
	if k.start == 0 {
		k.f.setText(fmt.Sprintf(k.path, fd))
		at := k.f.text - k.f.at
		if err := k.write(k.f.data[at:at+textRoom], k.f.text); err != nil {
			return k.undo(errors.Join(err, k.closeFile(fd)))
		}
		next = k.regs.call(k.entries.dlopen, k.entries.restorer, &k.f, k.f.text, k.entries.mode)
	}
	if err := k.thread.setRegisters(next); err != nil {
		return k.lost(err)
	}
	k.step("sent")
	return k.lost(k.thread.detach(0))
}
