package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// measureNS is the CPU time of one measurement: long against the clock's resolution
// and a timer interrupt, short enough for hundreds of them.
const measureNS = 20e6

// buildDriver compiles testdata/driver.c.
func buildDriver(ctx context.Context, root, dir string) (string, error) {
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	out := filepath.Join(dir, "driver")
	cmd := exec.CommandContext(ctx, cc, "-O2", "-Wall", "-o", out,
		filepath.Join(root, "test", "bench", "testdata", "driver.c"), "-ldl")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, err, text)
	}
	return out, nil
}

// driver is a running testdata/driver.c.
type driver struct {
	pid   uint32
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Scanner
	calls uint64 // made since its start
}

// start starts a driver on a library.
func (l *lab) start(ctx context.Context, library string) (*driver, error) {
	d := &driver{cmd: exec.CommandContext(ctx, l.driver, library, strconv.Itoa(l.cpu))}
	d.cmd.Env = append(os.Environ(), "CUDASIM_TRUTH_LEVEL=off", "LD_LIBRARY_PATH="+filepath.Dir(library))
	d.cmd.Stderr = os.Stderr
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe for the driver: %w", err)
	}
	if d.in, err = d.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("make a pipe for the driver: %w", err)
	}
	d.out = bufio.NewScanner(out)
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the driver: %w", err)
	}
	if err := d.read("ready %d", &d.pid); err != nil {
		d.stop()
		return nil, err
	}
	return d, nil
}

// stop ends the driver.
func (d *driver) stop() {
	_ = d.in.Close()
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait() // it was killed
}

func (d *driver) read(format string, to ...any) error {
	if !d.out.Scan() {
		return errors.Join(errors.New("the driver ended; what it says on standard error is why"), d.out.Err())
	}
	if _, err := fmt.Sscanf(d.out.Text(), format, to...); err != nil {
		return fmt.Errorf("the driver said %q: %w", d.out.Text(), err)
	}
	return nil
}

// call makes n calls and returns what one took, in ns of CPU time. verb is "call"
// or "sync".
func (d *driver) call(verb string, n int) (ns float64, err error) {
	if _, err := fmt.Fprintf(d.in, "%s %d\n", verb, n); err != nil {
		return 0, fmt.Errorf("tell the driver to %s: %w", verb, err)
	}
	d.calls += uint64(n)
	return ns, d.read("ok %f", &ns)
}

// cost makes as many calls as take measureNS, after some to warm up, and returns
// what one takes.
func (d *driver) cost(verb string) (float64, error) {
	ns, err := d.call(verb, 500)
	if err != nil {
		return 0, err
	}
	n := math.Min(math.Max(measureNS/math.Max(ns, 1), 1000), 500_000)
	return d.call(verb, int(n))
}

// pace makes launches at a rate, per second, for ms, and returns how many and how long it took.
func (d *driver) pace(rate, ms int) (calls uint64, took float64, err error) {
	if _, err := fmt.Fprintf(d.in, "pace %d %d\n", rate, ms); err != nil {
		return 0, 0, fmt.Errorf("tell the driver to pace: %w", err)
	}
	err = d.read("ok %d %f", &calls, &took)
	d.calls += calls
	return calls, took, err
}
