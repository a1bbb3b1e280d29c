package diagnosis

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// phase is a stretch of time in which the thread that the GPU waits for did one thing.
type phase struct {
	Span  timeline.Span
	TID   uint32
	Delay uint64 // ns of it in which the thread could have run and had no CPU
	Cause string
}

// The layout of testdata/scenarios/plan.c.
const (
	planHeader = 64
	planSize   = 64
	causeAt    = 32
)

var errPlan = errors.New("not a plan")

// readPlans reads the phases of all processes that wrote them under a prefix.
func readPlans(prefix string) ([]phase, error) {
	paths, err := filepath.Glob(prefix + ".*")
	if err != nil {
		return nil, fmt.Errorf("find plans: %w", err)
	}
	var all []phase
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read a plan: %w", err)
		}
		if len(b) < planHeader {
			return nil, fmt.Errorf("%s: %w", path, errPlan)
		}
		all = append(all, parsePlan(b)...)
	}
	return all, nil
}

func parsePlan(b []byte) []phase {
	n, le := int(binary.LittleEndian.Uint32(b)), binary.LittleEndian
	var out []phase
	for b = b[planHeader:]; n > 0 && len(b) >= planSize; n, b = n-1, b[planSize:] {
		if le.Uint32(b[4:]) == 0 {
			continue // not written to its end
		}
		name, _, _ := bytes.Cut(b[causeAt:planSize], []byte{0})
		out = append(out, phase{
			timeline.Span{From: le.Uint64(b[8:]), To: le.Uint64(b[16:])},
			le.Uint32(b),
			le.Uint64(b[24:]),
			string(name),
		})
	}
	return out
}

// truth is what happened: on the GPU, by the simulator, and in the program, by itself.
type truth struct {
	Busy    timeline.Spans // the GPU ran anything
	Enders  []uint32       // the thread that queued what each of Busy begins with
	Kernels timeline.Spans
	Named   map[string]timeline.Spans // when kernels ran, by name
	Copies  timeline.Spans
	Phases  []phase
	// Quota is for how many ns of the window the cgroup's quota was used up, of those that its threads had no CPU.
	Quota uint64
}

// newTruth puts together what the processes of a target wrote down.
func newTruth(device []*cudasim.Truth, phases []phase) *truth {
	var busy, kernels, copies []timeline.Span
	named := map[string][]timeline.Span{}
	queued := map[uint64]uint32{}
	for _, d := range device {
		for i := range d.Ops {
			op := timeline.Span{From: d.Ops[i].Start, To: d.Ops[i].End}
			switch d.Ops[i].Kind {
			case cudasim.HostFunction:
				continue
			case cudasim.Kernel:
				kernels = append(kernels, op)
				named[d.Ops[i].Name] = append(named[d.Ops[i].Name], op)
			case cudasim.Copy:
				copies = append(copies, op)
			}
			busy = append(busy, op)
			queued[op.From] = d.Ops[i].TID
		}
	}
	t := &truth{
		Phases:  phases,
		Busy:    timeline.Join(busy),
		Kernels: timeline.Join(kernels),
		Copies:  timeline.Join(copies),
		Named:   map[string]timeline.Spans{},
	}
	for name, list := range named {
		t.Named[name] = timeline.Join(list)
	}
	for _, s := range t.Busy {
		t.Enders = append(t.Enders, queued[s.From])
	}
	return t
}

// idle returns when the GPU ran nothing within the covered time, for each thread that ended it by queueing work.
func (t *truth) idle(covered timeline.Spans) map[uint32]timeline.Spans {
	out := map[uint32]timeline.Spans{}
	for _, s := range covered.Without(t.Busy) {
		by := uint32(0)
		if i := t.Busy.At(s.To); i < len(t.Enders) {
			by = t.Enders[i]
		}
		out[by] = append(out[by], s)
	}
	return out
}

// costs returns what each planted cause cost, in ns: for how long the GPU was idle within the covered time while the
// thread that would launch next did what the cause says. What of it that thread had no CPU is no-cpu's, or throttled's.
func (t *truth) costs(covered timeline.Spans, s *scenario) map[string]float64 {
	idle, out, delays := t.idle(covered), map[string]float64{}, uint64(0)
	for _, p := range t.Phases {
		cost := within(idle[p.TID], p.Span)
		if s.cpuOnly {
			cost = within(covered, p.Span)
		}
		delay := p.withoutCPU(cost)
		if p.Cause != "" {
			out[p.Cause] += float64(cost - delay)
		}
		delays += delay
	}
	throttled := min(t.Quota, delays)
	out["throttled"], out["no-cpu"] = float64(throttled), float64(delays-throttled)
	if s.copies != "" {
		out[s.copies] += float64(covered.Both(t.Copies).Without(t.Kernels).Total())
	}
	for _, k := range s.kernels {
		for name, ran := range t.Named {
			if strings.HasPrefix(name, k[0]) {
				out[k[1]] += float64(covered.Both(ran).Total())
			}
		}
	}
	return out
}

// waking is what it takes at most until a thread that is woken runs, where it waits for nobody: less than the shortest
// slice of the kernel's scheduler, 0.7 ms (sysctl_sched_base_slice, kernel/sched/fair.c), by far. It belongs to the
// waiting.
const waking = 200_000 // ns

// withoutCPU returns for how much of its cost the phase's thread had no CPU. After waiting for something that lies at
// the phase's end, where it costs. In other phases it can lie anywhere.
func (p *phase) withoutCPU(cost uint64) uint64 {
	switch p.Cause {
	case "host-sync", "sleep", "worker", "lock", "gil", "network", "no-work", "disk":
		if p.Delay < waking {
			return 0
		}
		return min(p.Delay, cost)
	}
	length := p.Span.To - p.Span.From
	return min(cost, uint64(float64(p.Delay)*float64(cost)/float64(max(1, length))))
}

// within returns how much of a span lies in spans, in ns.
func within(spans timeline.Spans, s timeline.Span) uint64 {
	n := uint64(0)
	for i := spans.At(s.From); i < len(spans) && spans[i].From < s.To; i++ {
		n += min(spans[i].To, s.To) - max(spans[i].From, s.From)
	}
	return n
}
