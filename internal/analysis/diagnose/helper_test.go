package diagnose_test

import (
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
	"github.com/inferscope/inferscope/internal/analysis/summary/gpu"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

const (
	ms    = calltest.Millisecond
	us    = calltest.Microsecond
	start = uint64(calltest.Start)
)

// scene is a recording with gaps and steps made by hand: what the walk says is given, what the diagnosis makes of it is
// tested.
type scene struct {
	*calltest.Builder
	t       *testing.T
	steps   []gap.Step
	alone   bool
	id      uint32
	predict func(id cause.ID) (diagnose.Gain, bool)              // of each remedy by itself
	also    func(remedies ...cause.Remedy) (diagnose.Gain, bool) // of the others; nil: none is known
	next    map[cause.ID]cause.ID                                // what limits once a cause is gone
	within  timeline.Span                                        // what gains are predicted of; diagnose sets it
	later   uint64                                               // ns: by how much the whole scene is moved
}

// newScene is one second of a process on one GPU of 100 multiprocessors, recorded whole.
func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{Builder: calltest.New(), t: t}
	s.Meta.GPU = &recording.GPU{
		Mode:   "continuous",
		Agents: []recording.Agent{{PID: recordtest.PID, State: "running"}},
		Windows: []recording.GPUWindow{
			{PID: recordtest.PID, From: start, To: start + 1000*ms, Activity: true, Calls: true, End: "open"},
		},
		Devices: []recording.Device{{PID: recordtest.PID, Name: "NVIDIA Test", SMs: 100}},
		Kernels: []recording.Kernel{{Name: "gemm"}, {Name: "gemvx::kernel"}},
	}
	s.Runs(recordtest.PID, start)
	return s
}

// work lets the GPU do something in [from, to), in ms after the start, with a launch just before it.
func (s *scene) work(kind event.Kind, ret int32, from, to uint64, args ...uint64) {
	s.id++
	s.Event(event.Event{
		TS: start + from*ms - 10*us, PID: recordtest.PID, TID: recordtest.PID, Func: s.Fn("cuLaunchKernel"),
		Kind: event.Call, Flags: event.Correlated | event.Timed, Dur: 5 * us, Ret: int32(s.id),
	})
	e := event.Event{
		TS:    start + from*ms,
		Dur:   (to - from) * ms,
		PID:   recordtest.PID,
		TID:   7,
		Func:  1 << 8,
		Kind:  kind,
		Flags: event.Timed,
		Ret:   ret,
	}
	e.Args[0] = uint64(s.id)
	copy(e.Args[2:], args)
	s.Event(e)
}

// grid packs a grid of x blocks as bpf/event.h does.
func grid(x uint64) uint64 { return x | 1<<32 | 1<<48 }

func (s *scene) kernel(from, to uint64) { s.work(event.Kernel, 1, from, to, grid(400), 256) }

// copies are Ret of copies' events.
const (
	h2dPageable = 1 | 1<<8 | 3<<16
	h2dPinned   = 1 | 2<<8 | 3<<16 | 1<<24
	d2hPinned   = 2 | 3<<8 | 2<<16 | 1<<24
	d2d         = 8 | 3<<8 | 3<<16 | 1<<24
)

func (s *scene) copy(ret int32, from, to uint64) { s.work(event.Copy, ret, from, to, 1<<20) }

// step says why nothing ran in [from, to), in ms.
func (s *scene) step(from, to uint64, c cause.ID, change ...func(*gap.Step)) {
	x := gap.Step{
		From:  start + from*ms,
		To:    start + to*ms,
		Cause: c,
		PID:   recordtest.PID,
		TID:   recordtest.PID,
		Op:    gap.None,
		Wait:  gap.None,
	}
	for _, f := range change {
		f(&x)
	}
	s.steps = append(s.steps, x)
}

// diagnose puts the steps into the gaps that there are. What has no step is unknown.
func (s *scene) diagnose() *diagnose.Diagnosis {
	s.t.Helper()
	rec := s.Recording()
	s.move(rec)
	tl := timeline.Build(rec)
	w := &gap.Walk{}
	found := gap.Build(tl)
	w.Covered = found.Covered
	for g := range found.All() {
		w.Gaps = append(w.Gaps, *g)
	}
	for i := range w.Gaps {
		g := &w.Gaps[i]
		g.First = int32(len(w.Steps))
		for _, x := range s.steps {
			if x.From < g.To && g.From < x.To {
				x.From, x.To = max(x.From, g.From), min(x.To, g.To)
				w.Steps = append(w.Steps, x)
			}
		}
		g.Last = int32(len(w.Steps))
	}
	if s.alone {
		w.Main = &gap.Alone{First: int32(len(w.Steps))}
		w.Steps = append(w.Steps, s.steps...)
		w.Main.Last = int32(len(w.Steps))
	}
	s.within = diagnose.Begin(tl, w).Within()
	d := diagnose.New(tl, w, gpu.Summarize(tl), cpu.Summarize(rec), s.predictor())
	check(s.t, d)
	return d
}

// predictor is what predicts for the diagnosis.
func (s *scene) predictor() diagnose.Predictor {
	if s.predict == nil {
		return nil
	}
	return predictor{s}
}

type predictor struct{ s *scene }

func (p predictor) Together(remedies ...cause.Remedy) (diagnose.Gain, bool) {
	switch {
	case len(remedies) == 1 && !remedies[0].Less && !remedies[0].Merge:
		return p.s.predict(remedies[0].Cause)
	case p.s.also != nil:
		return p.s.also(remedies...)
	}
	return diagnose.Gain{}, false
}

func (p predictor) Next(first cause.Remedy) (cause.ID, bool) {
	id, ok := p.s.next[first.Cause]
	return id, ok
}

// move makes all of a scene happen later.
func (s *scene) move(rec *recording.Recording) {
	if s.later == 0 {
		return
	}
	rec.Meta.From, rec.Meta.To = rec.Meta.From+s.later, rec.Meta.To+s.later
	for i := range rec.Events {
		rec.Events[i].TS += s.later
	}
	for i := range rec.Meta.GPU.Windows {
		w := &rec.Meta.GPU.Windows[i]
		w.From, w.To = w.From+s.later, w.To+s.later
	}
	for i := range s.steps {
		s.steps[i].From, s.steps[i].To = s.steps[i].From+s.later, s.steps[i].To+s.later
	}
}

// check holds what is true of any diagnosis.
func check(t *testing.T, d *diagnose.Diagnosis) {
	t.Helper()
	all := []diagnose.Breakdown{d.Breakdown}
	for i := range d.Devices {
		all = append(all, d.Devices[i].Breakdown)
	}
	for i, b := range all {
		for name, parts := range map[string][]diagnose.Part{"parts": b.Parts, "people": b.People} {
			sum := uint64(0)
			for _, p := range parts {
				sum += p.Time
				if p.Share < 0 || p.Share > 1 {
					t.Errorf("breakdown %d: %s has the share %v", i, p.Key, p.Share)
				}
			}
			if sum != b.Time {
				t.Errorf("breakdown %d: %s sum to %d of %d ns", i, name, sum, b.Time)
			}
		}
		if b.Share < 0 || b.Share > 1 {
			t.Errorf("breakdown %d: share %v", i, b.Share)
		}
	}
	cost, work := uint64(0), uint64(0)
	for _, f := range d.Findings {
		if f.Share < 0 || f.Share > 1 || f.Confidence < 0 || f.Confidence > 1 {
			t.Errorf("%s: share %v, confidence %v", f.Cause, f.Share, f.Confidence)
		}
		if f.Title == "" || len(f.Changes) < 2 || len(f.Evidence) == 0 || len(f.Because) == 0 {
			t.Errorf("%s: %q has %d changes, %d pieces of evidence, %d reasons",
				f.Cause, f.Title, len(f.Changes), len(f.Evidence), len(f.Because))
		}
		switch f.Cause {
		case "start-end", "low-clocks": // a time of its own; a part of the kernels' time, of whatever kind they are
		case "small-batch", "tiny-kernels", "bandwidth-bound":
			work += f.Cost
		default:
			cost += f.Cost
		}
	}
	compute := partOf(d.Breakdown, "compute")
	if cost > d.Breakdown.Time-compute || work > compute {
		t.Errorf("findings cost %d and %d ns of %d, of which %d are kernels", cost, work, d.Breakdown.Time, compute)
	}
	if (d.Verdict == diagnose.NotEnough) != (len(d.Reasons) > 0) {
		t.Errorf("verdict %s with the reasons %q", d.Verdict, d.Reasons)
	}
	if d.Verdict == "" || d.Headline == "" {
		t.Errorf("verdict %q, headline %q", d.Verdict, d.Headline)
	}
}

func partOf(b diagnose.Breakdown, key string) uint64 {
	for _, p := range b.Parts {
		if p.Key == key {
			return p.Time
		}
	}
	return 0
}

func viewOf(b diagnose.Breakdown, key string) uint64 {
	for _, p := range b.People {
		if p.Key == key {
			return p.Time
		}
	}
	return 0
}

// causes lists the causes of the findings.
func causes(d *diagnose.Diagnosis) string {
	var out []string
	for _, f := range d.Findings {
		out = append(out, f.Cause)
	}
	return strings.Join(out, " ")
}

func text(f *diagnose.Finding) string {
	var out []string
	for _, e := range f.Evidence {
		out = append(out, e.Text)
	}
	return strings.Join(out, "\n")
}

// judged is a simple program, and what is to be said of it.
type judged struct {
	name    string
	make    func(s *scene)
	verdict diagnose.Verdict
	causes  string
}

func judgeAll(t *testing.T, list []judged) {
	t.Helper()
	for _, c := range list {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			c.make(s)
			d := s.diagnose()
			if d.Verdict != c.verdict || causes(d) != c.causes {
				t.Errorf("%s with %q, want %s with %q; %q %q",
					d.Verdict, causes(d), c.verdict, c.causes, d.Headline, d.Reasons)
			}
		})
	}
}
