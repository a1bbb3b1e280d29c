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

	"github.com/inferscope/inferscope/internal/capture/overhead"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

const (
	paceRate   = 100_000 // events per second
	paceMS     = 5000
	paceRounds = 3
	idleMS     = 3000
	goalCPU    = 1.0 // % of a core

	// What fills the daemon's recorder, at a rate that loses nothing.
	fillRate, fillMS = 400_000, 4000

	daemonWait = 20 * time.Second
)

// daemonCost measures what the real daemon, with its default settings, takes itself:
// while it is idle, while its recorder takes memory for the first time, and after that.
func daemonCost(ctx context.Context, l *lab, t *table) error {
	l.say("the daemon at %d events/s", paceRate)
	if l.daemon == "" {
		var err error
		if l.daemon, err = buildDaemon(ctx, l); err != nil {
			return err
		}
	}
	target, err := l.start(ctx, l.sim.Libcuda(cudasim.Shape580))
	if err != nil {
		return err
	}
	defer target.stop()
	d, err := startDaemon(ctx, l.daemon, l.dir, target.pid)
	if err != nil {
		return err
	}
	defer d.kill()
	if err := d.untilProbed(ctx); err != nil {
		return err
	}
	c := daemonShares{}
	if err := c.measure(ctx, d, target); err != nil {
		return err
	}
	return d.report(ctx, t, target.calls, c)
}

// daemonShares are shares of a core, in %.
type daemonShares struct{ idle, growing, steady []float64 }

func (c *daemonShares) measure(ctx context.Context, d *daemon, target *driver) error {
	add := func(to *[]float64, f func() error) error {
		share, err := d.share(f)
		*to = append(*to, share)
		return err
	}
	idle := func() error { return rest(ctx, idleMS*time.Millisecond) }
	busy := func() error { return target.paced(paceRate, paceMS) }
	if err := errors.Join(add(&c.idle, idle), add(&c.growing, busy)); err != nil {
		return err
	}
	if _, _, err := target.pace(fillRate, fillMS); err != nil { // how fast does not matter
		return err
	}
	for range paceRounds {
		if err := errors.Join(add(&c.idle, idle), add(&c.steady, busy)); err != nil {
			return err
		}
	}
	return nil
}

// paced makes calls at a rate, and fails where the machine is too busy for that.
func (d *driver) paced(rate, ms int) error {
	calls, took, err := d.pace(rate, ms)
	if err == nil && float64(calls)/took*1000 < 0.98*float64(rate) {
		err = fmt.Errorf("%d calls took %.0f ms: the machine is too busy for %d calls/s", calls, took, rate)
	}
	return err
}

// status asks the daemon.
func (d *daemon) status(ctx context.Context) (api.Status, error) {
	c, err := api.Dial(d.socket)
	if err != nil {
		return api.Status{}, err
	}
	defer c.Close()
	return c.Status(ctx)
}

// untilProbed waits until the daemon has probed the target's library.
func (d *daemon) untilProbed(ctx context.Context) error {
	for end := time.Now().Add(daemonWait); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		s, err := d.status(ctx)
		if err != nil {
			return err
		}
		for _, lib := range s.Libraries {
			if lib.Probed > 0 {
				return nil
			}
		}
	}
	return fmt.Errorf("the daemon has probed nothing after %v:\n%s", daemonWait, &d.log)
}

func (d *daemon) report(ctx context.Context, t *table, made uint64, c daemonShares) error {
	time.Sleep(2 * drainEvery) // its timer has drained what was left
	status, err := d.status(ctx)
	if err != nil {
		return err
	}
	if status.Rings.Calls != made {
		return fmt.Errorf("the daemon saw %d of %d calls", status.Rings.Calls, made)
	}
	figure := func(x []float64) string { return fmt.Sprintf("%.2f %%", overhead.Median(x)) }
	held := func(what string, shares []float64, remark string) {
		t.held(what, figure(shares), remark, fmt.Sprintf("<= %.0f %%", goalCPU), overhead.Median(shares) <= goalCPU)
	}
	t.title("The daemon, default settings, cudasim r580, %d s each: all %d calls seen", paceMS/1000, made)
	t.add("CPU while nothing happens", figure(c.idle), "of a core")
	held("CPU at 100,000 events/s, its first 5 s", c.growing, "of a core: the recorder takes its memory")
	held("CPU at 100,000 events/s, later", c.steady, "of a core: the recorder is full")
	t.add("resident, with its helper", fmt.Sprintf("%d MB", status.Self.RSS/1e6),
		fmt.Sprintf("what they share or map twice counts in each; recorder %d, rings %d MB",
			status.Recorder.Used/1e6, status.Rings.Bytes/1e6))
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

// Write keeps b; it cannot fail.
func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(b)
}

// String returns all that was written so far.
func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.String()
}

// startDaemon starts the daemon on a process and returns when its probes are on.
func startDaemon(ctx context.Context, program, dir string, pid uint32) (*daemon, error) {
	d := &daemon{socket: filepath.Join(dir, "socket"), ended: make(chan struct{})}
	d.cmd = exec.CommandContext(ctx, program, "--socket", d.socket, "--pid", fmt.Sprint(pid), "--gpu",
		"continuous", "--no-inject")
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
