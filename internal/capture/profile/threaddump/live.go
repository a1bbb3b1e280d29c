// Package threaddump makes a dump of a running process: one stack of every thread, native
// and Python, with what each waits for. It reads the kernel's registers of sleeping
// threads and the process's memory; no thread is ever stopped, nothing is attached.
//
// A stack is copied first and unwound afterwards, and the kernel's count of a
// thread's switches reports whether it ran meanwhile; then it is copied again. Of a
// thread that is on a CPU only the Python frames are read, until two looks agree.
package threaddump

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/profile"
	"github.com/inferscope/inferscope/internal/capture/symbol"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/format/version"
	"github.com/inferscope/inferscope/internal/recording/dump"
)

// Limits: a process may have its memory served by a program of its own
// (userfaultfd, FUSE), and reading it then takes as long as that program likes.
const (
	maxAtATime  = 8                // dumps, one of a target; one that hangs keeps its place until its process ends
	dumpTimeout = 10 * time.Second // for one dump
)

// Taker makes dumps. It is safe for concurrent use.
type Taker struct {
	symbols  *symbol.Table // names native code
	describe describe
	pythons  *profile.Interpreters

	mu   sync.Mutex
	busy map[uint32]bool // targets of which a dump is being made
}

// New returns a Taker.
func New(symbols *symbol.Table, describe describe) *Taker {
	return &Taker{symbols: symbols, describe: describe, pythons: profile.NewInterpreters(), busy: map[uint32]bool{}}
}

// Take makes a dump of processes of target pid. Errors: clierror.NoProcess where none of
// them is there any more, clierror.Permission without CAP_BPF and CAP_PERFMON,
// clierror.General where it takes longer than dumpTimeout or other dumps are being made.
func (t *Taker) Take(ctx context.Context, pid uint32, processes []*proc.Process) (*dump.Dump, error) {
	ctx, cancel := context.WithTimeout(ctx, dumpTimeout)
	defer cancel()
	if !t.enter(pid) {
		return nil, clierror.New(clierror.General, "ask again in a few seconds",
			errors.New("other dumps are being made"))
	}
	type result struct {
		dump *dump.Dump
		err  error
	}
	done := make(chan result, 1)
	go func() {
		defer t.leave(pid)
		d, err := t.take(ctx, pid, processes)
		done <- result{d, err}
	}()
	select {
	case r := <-done:
		return r.dump, r.err
	case <-ctx.Done():
		return nil, clierror.New(clierror.General,
			"look whether its memory is served by a program that hangs (userfaultfd, FUSE)",
			fmt.Errorf("reading the memory of pid %d takes too long: %w", pid, ctx.Err()))
	}
}

// enter takes a place for a dump of a target, if there is one: whose memory hangs
// must not keep others from theirs.
func (t *Taker) enter(pid uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.busy[pid] || len(t.busy) == maxAtATime {
		return false
	}
	t.busy[pid] = true
	return true
}

func (t *Taker) leave(pid uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.busy, pid)
}

func (t *Taker) take(ctx context.Context, pid uint32, processes []*proc.Process) (*dump.Dump, error) {
	begun := time.Now()
	d := dump.New(version.String(), pid)
	d.At = begun.UnixNano()
	var errs []error
	for _, p := range processes {
		if ctx.Err() != nil {
			break
		}
		one, err := t.process(p)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		d.Processes = append(d.Processes, *one)
	}
	d.Took = uint64(time.Since(begun))
	if len(d.Processes) == 0 {
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
		return nil, gone(pid)
	}
	return d, nil
}

func gone(pid uint32) error {
	return clierror.New(clierror.NoProcess, "`inferscope targets` lists what is watched",
		fmt.Errorf("pid %d has ended", pid))
}

func (t *Taker) process(p *proc.Process) (*dump.Process, error) {
	l, err := newLister(p.PID)
	if err != nil {
		return nil, err
	}
	defer l.close()
	s, err := newSpace(p)
	if err != nil {
		return nil, err
	}
	defer s.close()
	out := &dump.Process{PID: p.PID, Parent: p.Parent, Comm: p.Comm, Cmdline: p.Cmdline, Threads: []dump.Thread{}}
	if p.NSPID != p.PID {
		out.NSPID = p.NSPID
	}
	interp, err := t.pythons.Open(p)
	if err != nil {
		out.Notes = append(out.Notes, "Python frames are missing: "+err.Error())
	}
	if interp != nil {
		out.Runtime, out.Path = interp.Name, interp.Module.Path
	}
	shots, err := (&camera{pid: p.PID, lister: l, interp: interp}).all()
	if err != nil {
		return nil, err
	}
	if !p.Alive() { // what was read may be another's
		return nil, gone(p.PID)
	}
	for i := range shots {
		out.Threads = append(out.Threads, t.thread(s, interp, &shots[i]))
	}
	return out, nil
}

// thread makes words of what was read.
func (t *Taker) thread(s *space, interp *profile.Interpreter, shot *shot) dump.Thread {
	out := dump.Thread{
		TID:    shot.raw.Tid,
		Name:   name(&shot.raw),
		State:  stateOf(&shot.raw),
		Torn:   shot.torn,
		Frames: []dump.Frame{},
	}
	var n native
	switch {
	case shot.memory != nil:
		n = s.unwind(registers(&shot.raw), shot.memory)
	case out.State == dump.Active:
		n.cut = "it is on a CPU, so that its registers are not known"
	}
	out.Whole, out.Cut = n.whole, n.cut
	m := &merger{space: s, symbols: t.symbols}
	var python []profile.PythonFrame
	if interp != nil {
		m.interp = &interpreter{module: interp.Module, runs: interp.Runs}
		python = interp.Frames(shot.python)
	}
	if frames := m.merge(n, python); frames != nil {
		out.Frames = frames
	}
	t.describe.label(s.process.PID, &shot.raw, &out)
	return out
}
