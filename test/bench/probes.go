package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/inferscope/inferscope/internal/capture/ring"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// detach takes a probe off again. seen is the number of calls that it saw, or none
// where it does not count.
type detach func() (seen uint64, err error)

// none is what a probe saw that counts nothing.
const none = ^uint64(0)

// emptyProgram does nothing: what it costs is the kernel's, whoever attaches.
func emptyProgram() (*ebpf.Program, error) {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Kprobe, AttachType: ebpf.AttachTraceUprobeMulti, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		return nil, fmt.Errorf("load an empty program: %w", err)
	}
	return prog, nil
}

// attachEmpty puts prog on one place of a file, for one process.
func attachEmpty(prog *ebpf.Program, path string, offset uint64, pid uint32) (detach, error) {
	ex, err := link.OpenExecutable(path)
	if err != nil {
		return nil, err
	}
	l, err := ex.UprobeMulti(nil, prog, &link.UprobeMultiOptions{Addresses: []uint64{offset}, PID: pid})
	if err != nil {
		return nil, fmt.Errorf("attach an empty program: %w", err)
	}
	return func() (uint64, error) { return none, l.Close() }, nil
}

// ours is the product's way from the probe to the recorder.
type ours struct {
	rings    *ring.Rings
	attacher *uprobe.Attacher
	recorder *recording.Recorder
	sum      uint64 // of what discard read, so that no compiler leaves the reading out
}

// drainEvery is the daemon's slowest interval, which it keeps below half a million
// calls per second.
const drainEvery = 50 * time.Millisecond

// recorderBytes is the daemon's default budget.
const recorderBytes = 100_000_000

// newOurs loads our programs. mode "" is the best that works here.
func newOurs(mode uprobe.Mode) (*ours, error) {
	o := &ours{}
	var err error
	if o.rings, err = ring.New(ring.Options{}); err != nil {
		return nil, fmt.Errorf("make rings: %w", err)
	}
	if o.attacher, err = uprobe.NewAttacher(uprobe.Options{Mode: mode, Maps: o.rings.Maps()}); err != nil {
		return nil, errors.Join(err, o.rings.Close())
	}
	if o.recorder, err = recording.NewRecorder(recorderBytes, time.Minute); err != nil {
		return nil, errors.Join(err, o.close())
	}
	return o, nil
}

func (o *ours) close() error { return errors.Join(o.attacher.Close(), o.rings.Close()) }

// attach puts our program on one site and drains what it writes on a timer, until it
// is detached.
func (o *ours) attach(path string, site uprobe.Site, pid uint32) (detach, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	at, err := o.attacher.Attach(file, pid, []uprobe.Site{site})
	if err != nil {
		return nil, err
	}
	stop := make(chan struct{})
	var seen uint64
	var wg sync.WaitGroup
	wg.Go(func() { seen = o.drainUntil(stop) })
	return func() (uint64, error) {
		err := at.Close()
		close(stop)
		wg.Wait()
		return seen, errors.Join(err, o.lost())
	}, nil
}

// drainUntil drains until stop, and once more.
func (o *ours) drainUntil(stop <-chan struct{}) (events uint64) {
	tick := time.NewTicker(drainEvery)
	defer tick.Stop()
	for running := true; running; {
		select {
		case <-tick.C:
		case <-stop:
			running = false
		}
		events += uint64(o.drain())
	}
	return events
}

func (o *ours) drain() int {
	return o.rings.Drain(func(batch []event.Event) { o.recorder.Append(batch...) })
}

// lost reports what the rings lost: a figure of a probe that gives up is none.
func (o *ours) lost() error {
	losses, err := o.rings.Losses()
	if err == nil && len(losses) > 0 {
		err = fmt.Errorf("events were lost: %+v", losses)
	}
	return err
}

// way is one of those to watch a function that are compared.
type way struct {
	name   string
	verb   string // what the driver is told: call or sync
	attach func(ctx context.Context) (detach, error)
	added  []float64 // ns added to a call, by round
}

// measure makes one round: the function unprobed, probed and unprobed again.
// It returns what an unprobed call took.
func (w *way) measure(ctx context.Context, d *driver) (base float64, err error) {
	before, err := d.cost(w.verb)
	if err != nil {
		return 0, err
	}
	off, err := w.attach(ctx)
	if err != nil {
		return 0, err
	}
	made := d.calls
	probed, err := d.cost(w.verb)
	made = d.calls - made
	seen, offErr := off()
	if err := errors.Join(err, offErr); err != nil {
		return 0, err
	}
	if seen != none && seen != made {
		return 0, fmt.Errorf("%d calls were made and %d seen", made, seen)
	}
	after, err := d.cost(w.verb)
	base = (before + after) / 2
	w.added = append(w.added, probed-base)
	return base, err
}
