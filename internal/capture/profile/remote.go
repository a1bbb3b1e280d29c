package profile

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/helper"
)

// remote is an unwinder in a helper process (helper.go).
type remote struct {
	cmd     *exec.Cmd
	conn    *net.UnixConn
	program *ebpf.Program
	said    complaint
	decoder decoder

	reaping sync.Once

	mu     sync.Mutex
	traces []trace
	taken  []trace // of the last take
	why    error
}

// startHelper starts the helper and returns when its unwinder runs. ctx ends the wait.
func startHelper(ctx context.Context, command []string, hz int, pids []uint32, c *converter) (unwinder, error) {
	r := &remote{decoder: decoder{convert: c}}
	// It lives until close, which lets it hand over its last stacks first.
	if err := r.launch(context.WithoutCancel(ctx), command, hz, pids); err != nil {
		return nil, fmt.Errorf("start the native unwinder: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = r.conn.Close() })
	err := r.ready()
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		r.close()
		return nil, fmt.Errorf("start the native unwinder: %w", errors.Join(err, r.said.err()))
	}
	go r.run()
	return r, nil
}

func (r *remote) launch(ctx context.Context, command []string, hz int, pids []uint32) error {
	args := append(slices.Clone(command[1:]), HelperArgument, strconv.Itoa(hz))
	for _, pid := range pids {
		args = append(args, strconv.FormatUint(uint64(pid), 10))
	}
	r.cmd = exec.CommandContext(ctx, command[0], args...)
	r.cmd.Stderr = &r.said
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is the daemon's; and see yield
	var err error
	r.conn, err = helper.Unwind.Start(r.cmd, helper.Packets)
	return err
}

// ready waits for the entry program.
func (r *remote) ready() error {
	packet := make([]byte, maxPacket)
	n, files, err := helper.Receive(r.conn, packet, 1)
	if err != nil {
		return errors.Join(errHelperGone, err)
	}
	for _, f := range files {
		defer f.Close()
	}
	if packet[0] != wireReady {
		if _, err = r.decoder.traces(packet[:n], nil); err == nil {
			err = errPacket
		}
		return err
	}
	if len(files) != 1 {
		return errPacket
	}
	fd, err := unix.FcntlInt(files[0].Fd(), unix.F_DUPFD_CLOEXEC, 0) // the program closes it
	if err != nil {
		return fmt.Errorf("take the entry program over: %w", err)
	}
	r.program, err = ebpf.NewProgramFromFD(fd)
	return err
}

var errHelperGone = errors.New("its helper process ended")

// run takes what the helper says until it ends.
func (r *remote) run() {
	packet := make([]byte, maxPacket)
	var traces []trace
	var err error
	for err == nil {
		n := receive(r.conn, packet)
		if n <= 0 {
			err = errHelperGone
			break
		}
		if traces, err = r.decoder.traces(packet[:n], traces[:0]); err == nil {
			r.keep(traces)
		}
	}
	r.reap()
	r.mu.Lock()
	r.why = fmt.Errorf("the native unwinder stopped by itself: restart the daemon: %w", errors.Join(err, r.said.err()))
	r.mu.Unlock()
}

// receive waits for a packet and returns its length; 0 or less: there will be none any more. It
// reads by a raw system call, which never waits: others wake the monitor thread of Go's runtime.
func receive(conn *net.UnixConn, packet []byte) (n int) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	err = raw.Read(func(fd uintptr) bool {
		for {
			length, _, errno := syscall.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&packet[0])),
				uintptr(len(packet)))
			if n = int(length); errno != unix.EINTR {
				return errno != unix.EAGAIN
			}
		}
	})
	if err != nil {
		return 0
	}
	return n
}

func (r *remote) keep(traces []trace) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.traces = append(r.traces, traces[:min(len(traces), maxTraces-len(r.traces))]...)
}

func (r *remote) entry() *ebpf.Program { return r.program }

func (r *remote) take() []trace {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.traces
	r.traces, r.taken = r.taken[:0], t
	return t
}

func (r *remote) err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.why
}

// reap ends the helper, which has nothing to put in order: the kernel takes back what it had.
func (r *remote) reap() {
	r.reaping.Do(func() {
		_ = r.conn.Close()
		_ = r.cmd.Process.Kill()
		_ = r.cmd.Wait()
	})
}

func (r *remote) close() {
	r.reap()
	if r.program != nil {
		_ = r.program.Close()
	}
}

// pid returns the helper's process id.
func (r *remote) pid() int { return r.cmd.Process.Pid }

// complaint keeps the beginning of what a process writes to standard error.
type complaint struct {
	mu   sync.Mutex
	text []byte
}

// maxComplaint bounds it, in bytes: the head of a Go panic is what counts.
const maxComplaint = 2048

// Write keeps the first maxComplaint bytes; it implements io.Writer and never fails.
func (t *complaint) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b[:min(len(b), maxComplaint-len(t.text))]...)
	return len(b), nil
}

// err returns the first line, nil where nothing was said.
func (t *complaint) err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	line, _, _ := strings.Cut(strings.TrimSpace(string(t.text)), "\n")
	if line == "" {
		return nil
	}
	return errors.New(clip(line))
}
