package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/api"
	"github.com/inferscope/inferscope/internal/cudasim"
)

const (
	paceRate   = 100_000 // events per second
	paceMS     = 5000
	paceRounds = 3
	idleMS     = 2000
	goalCPU    = 1.0 // % of a core

	daemonWait = 20 * time.Second
)

// daemonCost measures what the real daemon, with its default settings, takes itself.
func daemonCost(ctx context.Context, l *lab, t *table) error {
	l.say("the daemon at %d events/s", paceRate)
	program, err := buildDaemon(ctx, l)
	if err != nil {
		return err
	}
	target, err := l.start(ctx, l.sim.Libcuda(cudasim.Shape580))
	if err != nil {
		return err
	}
	defer target.stop()
	d, err := startDaemon(ctx, program, l.dir, target.pid)
	if err != nil {
		return err
	}
	defer d.kill()
	var idle, busy, rate []float64
	for range paceRounds {
		i, err := d.share(func() error { return rest(ctx, idleMS*time.Millisecond) })
		if err != nil {
			return err
		}
		var calls uint64
		var took float64
		b, err := d.share(func() (err error) { calls, took, err = target.pace(paceRate, paceMS); return err })
		if err != nil {
			return err
		}
		idle, busy, rate = append(idle, i), append(busy, b), append(rate, float64(calls)/took*1000)
	}
	return d.report(ctx, t, target.calls, idle, busy, rate)
}

func (d *daemon) report(ctx context.Context, t *table, made uint64, idle, busy, rate []float64) error {
	c, err := api.Dial(d.socket)
	if err != nil {
		return err
	}
	defer c.Close()
	time.Sleep(2 * drainEvery) // its timer has drained what was left
	status, err := c.Status(ctx)
	if err != nil {
		return err
	}
	if status.Rings.Events != made {
		return fmt.Errorf("the daemon saw %d of %d calls", status.Rings.Events, made)
	}
	cpu := median(busy)
	t.title("The daemon, default settings, cudasim r580, %d times %d s: all %d calls seen", paceRounds, paceMS/1000, made)
	t.add("CPU while nothing happens", fmt.Sprintf("%.2f %%", median(idle)), "of a core")
	t.held("CPU at 100,000 events/s", fmt.Sprintf("%.2f %%", cpu), fmt.Sprintf("of a core; the target made %.0f calls/s", median(rate)), fmt.Sprintf("<= %.0f %%", goalCPU), cpu <= goalCPU)
	t.add("memory of its own", fmt.Sprintf("%d MB", status.Self.RSS/1e6), fmt.Sprintf("and %d MB of rings in the kernel; the recorder's 100 MB are in it", status.Rings.Bytes/1e6))
	return nil
}

// rest waits.
func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func buildDaemon(ctx context.Context, l *lab) (string, error) {
	out := filepath.Join(l.dir, "inferscoped")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", out, "./cmd/inferscoped")
	cmd.Dir = l.sim.Root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, err, text)
	}
	return out, nil
}

// daemon is a running inferscoped.
type daemon struct {
	cmd    *exec.Cmd
	socket string
	log    journal
	ended  chan struct{}
}

// journal collects what the daemon writes.
type journal struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.String()
}

// startDaemon starts the daemon on a process and returns when its probes are on.
func startDaemon(ctx context.Context, program, dir string, pid uint32) (*daemon, error) {
	d := &daemon{socket: filepath.Join(dir, "socket"), ended: make(chan struct{})}
	d.cmd = exec.CommandContext(ctx, program, "--socket", d.socket, "--pid", fmt.Sprint(pid))
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the daemon: %w", err)
	}
	go func() {
		_ = d.cmd.Wait() // how it ended is in its log
		close(d.ended)
	}()
	for end := time.Now().Add(daemonWait); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if strings.Contains(d.log.String(), "ready") {
			return d, nil
		}
		select {
		case <-d.ended:
			return nil, fmt.Errorf("the daemon ended:\n%s", &d.log)
		default:
		}
	}
	d.kill()
	return nil, fmt.Errorf("the daemon is not ready after %v:\n%s", daemonWait, &d.log)
}

// kill ends the daemon as a service manager does, and at once where that takes too long.
func (d *daemon) kill() {
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.ended:
	case <-time.After(daemonWait):
		_ = d.cmd.Process.Kill()
	}
}

// share returns the CPU time that the daemon takes while f runs, in % of a core.
func (d *daemon) share(f func() error) (float64, error) {
	from, start := d.cpu(), time.Now()
	err := f()
	to, took := d.cpu(), time.Since(start)
	if err == nil && (from < 0 || to < 0) {
		err = errors.New("the daemon's CPU time cannot be read: it is gone")
	}
	return 100 * float64(to-from) / float64(took), err
}

// cpu is the CPU time of the daemon with all its threads, dead ones included, to the
// ns: /proc/PID/stat counts in steps of 10 ms. It is negative where there is none.
func (d *daemon) cpu() time.Duration {
	const scheduled = 2 // CPUCLOCK_SCHED of include/linux/posix-timers.h
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^d.cmd.Process.Pid)<<3|scheduled, &t); err != nil {
		return -1
	}
	return time.Duration(t.Nano())
}
