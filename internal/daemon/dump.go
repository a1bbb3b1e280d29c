package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording/dump"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// dumper dumps the threads of processes: threaddump.Taker.
type dumper interface {
	Take(ctx context.Context, pid uint32, processes []*proc.Process) (*dump.Dump, error)
}

// guard verifies that a process belonged only to one user for an interval: proc.Guard.
type guard interface {
	Check() error
	Close() error
}

// guardFunc returns a guard if the process belongs to the user now.
type guardFunc func(p *proc.Process, uid uint32) (guard, error)

func guardOf(p *proc.Process, uid uint32) (guard, error) { return p.Guard(uid) }

// Dump returns one stack of every thread of a target.
func (d *Daemon) Dump(ctx context.Context, r api.DumpRequest) (*dump.Dump, error) {
	if d.parts.Dumper == nil {
		return nil, clierror.New(clierror.Unsupported, "use `inferscope report`",
			errors.New("this daemon makes no dumps"))
	}
	v, ok := d.follower.view(r.PID)
	if !ok {
		return nil, clierror.New(clierror.NoProcess, "`inferscope targets` lists what is watched",
			fmt.Errorf("pid %d is not a target of this daemon", r.PID))
	}
	var processes []*proc.Process
	guards := map[uint32]guard{}
	withheld := 0
	for _, e := range v.entries {
		p := e.process
		if p.Died != 0 || p.PID != r.PID && !r.Children {
			continue
		}
		if !r.Any {
			g, err := d.follower.guard(p, r.UID)
			if err != nil {
				withheld++
				continue
			}
			defer func() { _ = g.Close() }()
			guards[p.PID] = g
		}
		processes = append(processes, p)
	}
	if len(processes) == 0 {
		return nil, clierror.New(clierror.NoProcess, "`inferscope report` shows what was recorded of it",
			fmt.Errorf("pid %d has exited, or is another user's", r.PID))
	}
	out, err := d.parts.Dumper.Take(ctx, r.PID, processes)
	if err != nil || r.Any {
		return out, err
	}
	// The result is shown only if the process belonged to the user throughout.
	kept := slices.DeleteFunc(out.Processes, func(p dump.Process) bool {
		g := guards[p.PID]
		return g == nil || g.Check() != nil
	})
	out.Withheld = withheld + len(out.Processes) - len(kept)
	out.Processes = kept
	return out, nil
}

// nameStacks fills the tables of stacks with those of the recording's samples, and counts the samples whose stack was
// evicted.
func (r *held) nameStacks(s stacker) {
	if s == nil {
		return
	}
	samples, numbers := r.references().samples, r.references().stacks
	if len(numbers) == 0 {
		return
	}
	r.meta.Frames, r.meta.Stacks, r.stackAt = s.Stacks(numbers)
	evicted := loss.Loss{Reason: loss.StackEvicted}
	for _, n := range numbers {
		if _, ok := r.stackAt[n]; !ok {
			evicted.Count += samples[n]
		}
	}
	if evicted.Count > 0 {
		r.meta.Losses = ordered(append(r.meta.Losses, evicted))
	}
}
