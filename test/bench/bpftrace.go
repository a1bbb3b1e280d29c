package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"time"
)

// bpftraceWait is how long bpftrace may take to attach or to end.
const bpftraceWait = 20 * time.Second

// bpftrace counts the calls of a function by its ordinary uprobe, as a person would
// type it.
type bpftrace struct {
	cmd    *exec.Cmd
	out    bytes.Buffer
	ended  chan struct{} // closed when bpftrace has ended
	driver *driver
	verb   string
}

// attachBpftrace returns when the uprobe is on.
func attachBpftrace(ctx context.Context, d *driver, verb, path, function string) (detach, error) {
	b := &bpftrace{driver: d, verb: verb, ended: make(chan struct{})}
	base, err := b.cheapest()
	if err != nil {
		return nil, err
	}
	b.cmd = exec.CommandContext(ctx, "bpftrace", "-p", strconv.Itoa(int(d.pid)),
		"-e", fmt.Sprintf("uprobe:%s:%s { @calls = count(); }", path, function))
	b.cmd.Stdout, b.cmd.Stderr = &b.out, &b.out
	if err := b.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start bpftrace: %w", err)
	}
	go func() {
		_ = b.cmd.Wait() // it ends with 0 or by the signal; its count reports whether it worked
		close(b.ended)
	}()
	if err := b.untilOn(base); err != nil {
		_ = b.cmd.Process.Kill()
		return nil, err
	}
	made := d.calls
	return func() (uint64, error) { return b.detach(d.calls - made) }, nil
}

// cheapest is the least of three short measurements, for bpftrace does not say when
// its probe is on: its cost does, and the count at the end confirms it.
func (b *bpftrace) cheapest() (float64, error) {
	least := 1e18
	for range 3 {
		ns, err := b.driver.call(b.verb, 200)
		if err != nil {
			return 0, err
		}
		least = min(least, ns)
	}
	return least, nil
}

func (b *bpftrace) untilOn(base float64) error {
	const probeNS = 150 // no uprobe costs less
	for end := time.Now().Add(bpftraceWait); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		select {
		case <-b.ended:
			return fmt.Errorf("bpftrace ended before its probe was on (%s): %s", b.cmd.ProcessState, b.out.String())
		default:
		}
		ns, err := b.cheapest()
		if err != nil || ns > base+probeNS {
			return err
		}
	}
	return fmt.Errorf("bpftrace has not attached within %v", bpftraceWait)
}

// detach ends bpftrace and reads its count, which includes the calls that it was
// waited for with.
func (b *bpftrace) detach(made uint64) (uint64, error) {
	if err := b.cmd.Process.Signal(os.Interrupt); err != nil {
		return 0, fmt.Errorf("end bpftrace: %w", err)
	}
	select {
	case <-b.ended:
	case <-time.After(bpftraceWait):
		_ = b.cmd.Process.Kill()
		return 0, errors.New("bpftrace does not end")
	}
	m := regexp.MustCompile(`@calls: (\d+)`).FindSubmatch(b.out.Bytes())
	if m == nil {
		return 0, fmt.Errorf("bpftrace counted nothing: %s", b.out.String())
	}
	n, err := strconv.ParseUint(string(m[1]), 10, 64)
	if err == nil && n < made {
		err = fmt.Errorf("bpftrace counted %d of %d calls", n, made)
	}
	return none, err
}
