package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/inferscope/inferscope/internal/capture/overhead"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

const (
	attachSites  = 600
	attachRounds = 5
	perfSites    = 20 // the kernel takes 0.1 s to close each
	goalAttach   = 100 * time.Millisecond
)

// attaching is one way to attach many functions, measured in rounds.
type attaching struct {
	name         string
	mode         uprobe.Mode
	sites        []uprobe.Site
	goal         bool
	ours         *ours
	on, off, sum []float64 // ms
}

// attachCosts measures how long it takes until 600 functions are probed, and until
// they are no more.
func attachCosts(ctx context.Context, l *lab, t *table) error {
	l.say("attach and detach of %d functions", attachSites)
	path := l.sim.Libcuda(cudasim.Shape580)
	sites, timed, err := manySites(path)
	if err != nil {
		return err
	}
	target, err := l.start(ctx, path)
	if err != nil {
		return err
	}
	defer target.stop()
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	all := []*attaching{
		{name: "session", mode: uprobe.Session, sites: sites, goal: true},
		{name: "session, entries only", mode: uprobe.Session, sites: withTimed(sites, false)},
		{name: "session, all timed", mode: uprobe.Session, sites: withTimed(sites, true)},
		{name: "multi", mode: uprobe.Multi, sites: sites, goal: true},
	}
	perf := &attaching{name: "perf", mode: uprobe.Perf, sites: sites[:perfSites]}
	err = attachRoundsOf(ctx, append(all, perf), file, target.pid)
	t.title("Attach and detach of %d functions of cudasim r580, %d of them timed (wall clock)", len(sites), timed)
	for _, a := range all {
		a.report(t)
	}
	perf.extrapolate(t, len(sites))
	return err
}

// manySites are the probes of the first functions that a library exports.
func manySites(path string) (sites []uprobe.Site, timed int, err error) {
	all, err := exports(path)
	if err != nil {
		return nil, 0, err
	}
	last := ^uint64(0)
	for _, f := range all {
		if f.Offset == last || len(sites) == attachSites {
			continue // another name of the same function
		}
		last = f.Offset
		row, _ := cuda.Match(f.Name) // what the table does not know is probed at the entry only
		sites = append(
			sites,
			uprobe.Site{Offset: f.Offset + f.point.Offset, Cookie: row.Cookie(uint16(len(sites))), Timed: row.Timed},
		)
		if row.Timed {
			timed++
		}
	}
	if len(sites) < attachSites {
		return nil, 0, fmt.Errorf("%s exports only %d functions", path, len(sites))
	}
	return sites, timed, nil
}

func withTimed(sites []uprobe.Site, timed bool) []uprobe.Site {
	out := make([]uprobe.Site, len(sites))
	for i, s := range sites {
		out[i] = uprobe.Site{Offset: s.Offset, Cookie: s.Cookie, Timed: timed}
	}
	return out
}

// attachRoundsOf attaches in each way in each round; the last way, perf, in the
// first round alone.
func attachRoundsOf(ctx context.Context, all []*attaching, file *os.File, pid uint32) error {
	var errs []error
	for _, a := range all {
		var err error
		if a.ours, err = newOurs(a.mode); err != nil {
			return errors.Join(append(errs, err)...)
		}
		defer func() { _ = a.ours.close() }()
	}
	for i := range attachRounds {
		for _, a := range all {
			if i > 0 && a.mode == uprobe.Perf {
				continue
			}
			if err := a.round(file, pid); err != nil {
				errs = append(errs, fmt.Errorf("attach by %s: %w", a.name, err))
			}
			if ctx.Err() != nil {
				return errors.Join(append(errs, ctx.Err())...)
			}
		}
	}
	return errors.Join(errs...)
}

func (a *attaching) round(file *os.File, pid uint32) error {
	start := time.Now()
	at, err := a.ours.attacher.Attach(file, pid, a.sites)
	if err != nil {
		return err
	}
	attached := time.Now()
	failed := at.Failed()
	if err := at.Close(); err != nil {
		return err
	}
	end := time.Now()
	if len(failed) > 0 {
		return fmt.Errorf("%d of %d sites could not be probed: %w", len(failed), len(a.sites), failed[0])
	}
	ms := func(d time.Duration) float64 { return float64(d) / 1e6 }
	a.on, a.off, a.sum = append(a.on, ms(attached.Sub(start))),
		append(a.off, ms(end.Sub(attached))), append(a.sum, ms(end.Sub(start)))
	return nil
}

func (a *attaching) report(t *table) {
	if len(a.sum) == 0 {
		return // the error says why
	}
	sum := overhead.Median(a.sum)
	figure := fmt.Sprintf("%.0f ms", sum)
	remark := fmt.Sprintf("attach %.0f, detach %.0f", overhead.Median(a.on), overhead.Median(a.off))
	if !a.goal {
		t.add(a.name, figure, remark)
		return
	}
	goal := float64(goalAttach) / 1e6
	t.held(a.name, figure, remark, fmt.Sprintf("<= %.0f ms", goal), sum <= goal)
}

// extrapolate reports what a few sites say of n.
func (a *attaching) extrapolate(t *table, n int) {
	if len(a.sum) == 0 {
		return
	}
	times := float64(n) / float64(len(a.sites)) / 1000
	t.add(a.name+", before kernel 6.6", fmt.Sprintf("%.0f s", overhead.Median(a.sum)*times),
		fmt.Sprintf("attach %.1f, detach %.0f: extrapolated from %d functions",
			overhead.Median(a.on)*times, overhead.Median(a.off)*times, len(a.sites)))
}
