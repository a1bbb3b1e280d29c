package daemon

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// activity is implemented by the source whose events are GPU activity. At most one source implements it, because Ret of
// a Kernel can index only one table of names.
type activity interface {
	// Flush returns when everything that ended before in these processes can be
	// fed, or after a bounded time.
	Flush(ctx context.Context, pids []uint32)
	// Departed returns when every agent that was told to leave one of these processes has left and its last records
	// were fed; it returns false if one has not when ctx is done.
	Departed(ctx context.Context, pids []uint32) bool
	// GPU returns what is known of these processes of target root in [from, to] (ns), with the
	// kernels and ranges of these numbers, and for each number its index + 1 there.
	GPU(
		root uint32,
		pids []uint32,
		from, to uint64,
		kernels, ranges []int32,
	) (g *recording.GPU, kernelAt, rangeAt map[int32]int32)
	// Continuous records all of the time of target root until end is called, once. It
	// returns when that has begun, or after a bounded time.
	Continuous(ctx context.Context, root uint32) (end func(), err error)
	// Agents returns the agents of all processes, ordered by pid.
	Agents() []recording.AgentStatus
}

// filler is a feeder that reports how full its own buffers were at the last Feed, from 0 to 1.
type filler interface {
	Fill() float64
}

// Continuous records GPU activity of target pid all of the time until end is called.
func (d *Daemon) Continuous(ctx context.Context, pid uint32) (end func(), err error) {
	if d.activity == nil {
		return nil, clierror.New(clierror.Usage, "start the daemon without --gpu off",
			errors.New("GPU activity is switched off in this daemon"))
	}
	return d.activity.Continuous(ctx, pid)
}

// flush moves what the agents of a target hold into the recording that ends now.
func (d *Daemon) flush(ctx context.Context, pid uint32) {
	if d.activity == nil {
		return
	}
	if v, ok := d.follower.view(pid); ok {
		d.activity.Flush(ctx, v.pids())
	}
}

// departed returns when the agents of a released target have left. If ctx ends before, its error says what to do.
func (d *Daemon) departed(ctx context.Context, pid uint32) error {
	v, ok := d.follower.view(pid)
	if d.activity == nil || !ok || d.activity.Departed(ctx, v.pids()) {
		return nil
	}
	return clierror.New(
		clierror.General,
		"it leaves by itself, and does not slow the process; other profilers may be refused until then (CUPTI error 39)",
		fmt.Errorf("pid %d is not watched any more, but its agent is still on its way out", pid),
	)
}

// pids returns the target's processes, each once.
func (v *view) pids() []uint32 {
	out := make([]uint32, 0, len(v.entries))
	for _, e := range v.entries {
		out = append(out, e.process.PID)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// nameGPU fills the GPU tables with what the recording's events refer to.
func (r *held) nameGPU(a activity, v *view) {
	if a == nil {
		return
	}
	refs := r.references()
	r.meta.GPU, r.kernelAt, r.rangeAt = a.GPU(v.pid, v.pids(), r.meta.From,
		r.meta.To, sorted(refs.kernels), sorted(refs.ranges))
}

func sorted(set map[int32]bool) []int32 {
	out := make([]int32, 0, len(set))
	for n := range set {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

// renumber replaces the references of an event by the numbers of the recording.
func (r *held) renumber(e *event.Event) {
	switch e.Kind {
	case event.Sample, event.Allocation, event.OutOfMemory:
		if r.stackAt != nil {
			e.Args[0] = r.stackAt[e.Args[0]]
		}
	case event.Kernel:
		e.Ret = r.kernelAt[e.Ret]
	case event.Range:
		if e.Func == event.ScopeRange {
			e.Ret, e.Args[3] = r.scopeAt[e.Ret], uint64(r.attributeAt[int32(e.Args[3])])
			return
		}
		e.Ret = r.rangeAt[e.Ret]
	}
}

// renumbered yields copies of the events with the recording's own numbers: the
// recorder's memory is shared with other recordings.
func renumbered(batches iter.Seq[[]event.Event], renumber func(*event.Event)) iter.Seq[[]event.Event] {
	return func(yield func([]event.Event) bool) {
		var room []event.Event
		for batch := range batches {
			room = append(room[:0], batch...)
			for i := range room {
				renumber(&room[i])
			}
			if !yield(room) {
				return
			}
		}
	}
}
