package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"github.com/cilium/ebpf"

	"github.com/inferscope/inferscope/internal/capture/overhead"
)

const (
	launchName = "cuLaunchKernel"
	syncName   = "cuStreamSynchronize"

	goalEmpty    = 1.25 // ours against an empty probe at the same point
	goalBpftrace = 20   // bpftrace's uprobe against ours, where the entry is single-stepped
)

// callCosts measures what ways to watch a call add to it, on each library.
func callCosts(ctx context.Context, l *lab, t *table) error {
	o, err := newOurs("")
	if err != nil {
		return err
	}
	defer func() { _ = o.close() }()
	empty, err := emptyProgram()
	if err != nil {
		return err
	}
	defer func() { _ = empty.Close() }()
	var errs []error
	for _, lib := range l.libraries() {
		if lib.err != nil {
			t.title("Calls of %s: %v", lib.name, lib.err)
			continue
		}
		l.say("calls of %s", lib.name)
		c := &callBench{lib: lib, ours: o, empty: empty}
		if err := c.run(ctx, l, t); err != nil {
			errs = append(errs, fmt.Errorf("calls of %s: %w", lib.name, err))
		}
	}
	return errors.Join(errs...)
}

// callBench measures on one library.
type callBench struct {
	lib    library
	ours   *ours
	empty  *ebpf.Program
	driver *driver

	launch, sync                   *function
	atPoint, atEntry, own, syncOwn way
	syncEmpty, counted             way
	base, syncBase                 []float64
	withBpftrace                   bool
}

func (c *callBench) run(ctx context.Context, l *lab, t *table) error {
	if err := c.prepare(); err != nil {
		return err
	}
	var err error
	if c.driver, err = l.start(ctx, c.lib.path); err != nil {
		return err
	}
	defer c.driver.stop()
	if err := c.ways(); err != nil {
		return err
	}
	for range l.rounds {
		if err := c.round(ctx); err != nil {
			return err
		}
	}
	c.report(t)
	return nil
}

func (c *callBench) prepare() error {
	all, err := exports(c.lib.path)
	if err != nil {
		return err
	}
	if c.launch, err = find(all, launchName); err != nil {
		return err
	}
	if c.sync, err = find(all, syncName); err != nil {
		return err
	}
	_, err = exec.LookPath("bpftrace")
	c.withBpftrace = err == nil
	return nil
}

// ways lists how each of those compared is attached.
func (c *callBench) ways() error {
	launch, err := c.launch.site(0)
	if err != nil {
		return err
	}
	sync, err := c.sync.site(1)
	if err != nil {
		return err
	}
	if !sync.Timed {
		return errors.New(syncName + " is not timed: choose another function for what the return costs")
	}
	empty := func(offset uint64) func(context.Context) (detach, error) {
		return func(context.Context) (detach, error) { return attachEmpty(c.empty, c.lib.path, offset, c.driver.pid) }
	}
	c.atPoint = way{name: "empty probe at our point", verb: "call", attach: empty(launch.Offset)}
	c.atEntry = way{name: "empty probe at the entry", verb: "call", attach: empty(c.launch.Offset)}
	c.own = way{name: "ours", verb: "call", attach: func(context.Context) (detach, error) {
		return c.ours.attach(c.lib.path, launch, c.driver.pid)
	}}
	c.counted = way{name: "bpftrace", verb: "call", attach: func(ctx context.Context) (detach, error) {
		return attachBpftrace(ctx, c.driver, "call", c.lib.path, launchName)
	}}
	c.syncEmpty = way{name: "empty probe at our point", verb: "sync", attach: empty(sync.Offset)}
	c.syncOwn = way{name: "ours", verb: "sync", attach: func(context.Context) (detach, error) {
		return c.ours.attach(c.lib.path, sync, c.driver.pid)
	}}
	return nil
}

// round measures every way once, back to back.
func (c *callBench) round(ctx context.Context) error {
	ways := []*way{&c.atPoint, &c.own, &c.atEntry, &c.syncEmpty, &c.syncOwn}
	if c.withBpftrace {
		ways = append(ways, &c.counted)
	}
	for _, w := range ways {
		base, err := w.measure(ctx, c.driver)
		if err != nil {
			return fmt.Errorf("%s on %s: %w", w.name, w.verb, err)
		}
		if w.verb == "sync" {
			c.syncBase = append(c.syncBase, base)
		} else {
			c.base = append(c.base, base)
		}
	}
	return nil
}

func (c *callBench) report(t *table) {
	ns := func(x []float64) string { return fmt.Sprintf("%.0f ns", overhead.Median(x)) }
	times := func(a, b []float64) (float64, string) {
		r := overhead.Median(ratios(a, b))
		return r, fmt.Sprintf("%.2f x the empty probe", r)
	}
	empty := c.atPoint.added
	t.title("Calls of %s, added to each (CPU time): our point is entry+%d, %s", c.lib.name,
		c.launch.point.Offset, c.launch.point.Insn)
	t.add(launchName+" unprobed, takes", ns(c.base), "")
	t.add("  empty uprobe_multi probe at our point", ns(empty), "")
	_, remark := times(c.atEntry.added, empty)
	t.add("  empty uprobe_multi probe at the entry", ns(c.atEntry.added), remark)
	r, remark := times(c.own.added, empty)
	t.held("  ours: event into the ring, drained", ns(c.own.added), remark,
		fmt.Sprintf("<= %.2f x", goalEmpty), r <= goalEmpty)
	c.reportBpftrace(t)
	t.add(syncName+" unprobed, takes", ns(c.syncBase), "")
	t.add("  empty uprobe_multi probe at our point", ns(c.syncEmpty.added), "")
	_, remark = times(c.syncOwn.added, c.syncEmpty.added)
	t.add("  ours, timed ("+string(c.ours.attacher.Mode())+"): entry, return, event", ns(c.syncOwn.added), remark)
}

func (c *callBench) reportBpftrace(t *table) {
	const what = "  bpftrace count(), its uprobe"
	if !c.withBpftrace {
		t.add(what, "-", "skipped: bpftrace is not installed")
		return
	}
	r := overhead.Median(ratios(c.counted.added, c.own.added))
	figure, remark := fmt.Sprintf("%.0f ns", overhead.Median(c.counted.added)), fmt.Sprintf("%.1f x ours", r)
	if c.lib.thunk {
		t.held(what, figure, remark, fmt.Sprintf(">= %d x ours", goalBpftrace), r >= goalBpftrace)
		return
	}
	t.add(what, figure, remark)
}
