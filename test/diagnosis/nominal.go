package diagnosis

import (
	"fmt"
	"math"
	"strings"

	"github.com/inferscope/inferscope/internal/cause"
	"github.com/inferscope/inferscope/internal/gap"
	"github.com/inferscope/inferscope/internal/threads"
	"github.com/inferscope/inferscope/internal/timeline"
	"github.com/inferscope/inferscope/internal/whatif"
)

// works says which actions take as many µs as their number says, or a time that goes with how many bytes it says, and the cause of that.
func works() map[string]cause.ID {
	return map[string]cause.ID{
		"native": cause.NativeWork, "pack": cause.NativeWork, "tokenize": cause.Preprocessing, "decode": cause.Preprocessing, "resize": cause.Preprocessing,
		"pytokenize": cause.Preprocessing, "json": cause.Preprocessing, "csv": cause.Preprocessing, "regex": cause.Preprocessing,
		"python": cause.PythonWork, "beams": cause.PythonWork, "pickle": cause.Serialization,
		"read": cause.Disk,
	}
}

// nominal returns how many actions of each cause the first line of a script has, and how many µs they are to take.
func nominal(script string) (us map[cause.ID]float64, n map[cause.ID]int) {
	us, n = map[cause.ID]float64{}, map[cause.ID]int{}
	line, _, _ := strings.Cut(script, "\n")
	for action := range strings.SplitSeq(line, ";") {
		var name string
		var takes float64
		if _, err := fmt.Sscan(action, &name, &takes); err != nil {
			continue
		}
		if c, ok := works()[name]; ok {
			us[c] += takes
			n[c]++
		}
	}
	return us, n
}

// asItWas returns edits for what the machine made of a twin beside its fix: both do the same work, but a CPU that others use too is
// slower in one run than in the next, and so is a disk. Both write down how long it took.
func (t *twin) asItWas(s *scenario, base, fixed observation) []whatif.Edit {
	before, n := nominal(s.script)
	after, m := nominal(t.script)
	var out []whatif.Edit
	for c, us := range before {
		x, y := phaseEach(s, base, c), phaseEach(s, fixed, c)
		if n[c] != m[c] || x == 0 || y == 0 {
			continue
		}
		if by := x / y * after[c] / us; math.Abs(by-1) > 0.01 {
			out = append(out, whatif.Edit{Verb: whatif.Faster, Pattern: c.String(), Cause: c, Factor: math.Round(by*1000) / 1000})
		}
	}
	if x, y := withoutCPU(base), withoutCPU(fixed); s.hogs == 0 && s.quota == 0 && x > 0 {
		out = append(out, whatif.Edit{Verb: whatif.Faster, Pattern: cause.NoCPU.String(), Cause: cause.NoCPU, Factor: math.Round(1000*x/max(y, x/1000)) / 1000})
	}
	return out
}

// withoutCPU returns for how long the threads that launch had no CPU for each kernel, in ns: the neighbours' doing. Waking up is not meant.
func withoutCPU(o observation) float64 {
	const wakingUp = 200_000 // ns: internal/gap's
	t := timeline.Build(o.recording)
	launched := map[[2]uint32]bool{}
	for i := range t.Activities {
		if op := t.Activities[i].Op; op != timeline.None {
			th := &t.Threads[t.ThreadOf(op)]
			launched[[2]uint32{t.Processes[th.Process].PID, th.TID}] = true
		}
	}
	sum := 0.0
	for _, th := range t.Index.Threads() {
		for _, iv := range th.Intervals {
			if launched[[2]uint32{th.PID, th.TID}] && iv.State == threads.Runnable && iv.Dur() > wakingUp {
				sum += float64(iv.Dur())
			}
		}
	}
	return sum / float64(max(1, len(t.Activities)))
}

// phaseEach returns how long the phases of a cause took for each unit of what the program gets done while it was watched (see rate), in ns of
// having a CPU; 0 where there are few.
func phaseEach(s *scenario, o observation, c cause.ID) float64 {
	sum, n := 0.0, 0
	for _, p := range o.truth.Phases {
		if p.Cause == c.String() && p.Span.From >= o.recording.Meta.From && p.Span.To <= o.recording.Meta.To {
			sum += float64(p.Span.To-p.Span.From) - float64(p.Delay)
			n++
		}
	}
	const few = 20
	if n < few || rate(s, o) == 0 {
		return 0
	}
	return sum / (rate(s, o) * float64(o.recording.Meta.To-o.recording.Meta.From))
}

// rate is how much a program gets done in a second: kernels while the GPU was watched, or sleeps of one without.
func rate(s *scenario, o observation) float64 {
	t := timeline.Build(o.recording)
	if s.cpuOnly {
		n := 0
		for _, p := range o.truth.Phases {
			if p.Cause == "sleep" && p.Span.From >= t.From && p.Span.To <= t.To {
				n++
			}
		}
		return float64(n) / float64(t.To-t.From) * 1e9
	}
	covered := gap.Covered(t)
	n, ns := 0, uint64(0)
	for _, c := range covered {
		ns += c.Total()
	}
	for i := range t.Activities {
		a := &t.Activities[i]
		if d := t.Streams[a.Stream].Device; a.Kind == timeline.Kernel && covered[d].Holds(a.Start) {
			n++
		}
	}
	return float64(n) / float64(max(ns, 1)) * 1e9
}
