package diagnose

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// group holds all steps of one cause.
type group struct {
	id      cause.ID
	cost    uint64              // ns
	steps   uint64              // how many
	sure    [3]uint64           // ns, by gap.Confidence
	inner   [cause.Count]uint64 // ns: what those did that were waited for
	threads tally               // whose doing it was
	waiters tally               // who would have launched
	unseen  uint64              // ns in which threads waited for others of which nothing is known
	stacks  tally
	seen    tally  // steps by stack that were seen there, not guessed
	calls   tally  // by function
	takers  tally  // of NoCPU: who had the CPU, as far as somebody took it
	linked  uint64 // ns of gaps whose call is certain
	guessed uint64 // ns of gaps whose call was found, but not for certain
	lost    uint64 // ns of gaps whose call was not found
	longest []stretch
	least   uint64               // ns: what is shorter is not among the longest
	samples uint64               // steps with a stack of their own
	windows []uint64             // ns by window, of the first mostWindows; nil where there is one
	kinds   [maxStepKinds]uint64 // ns by kind of the iteration, as far as that is known
}

// stretch is an interval to show as evidence.
type stretch struct {
	from, to uint64 // ns, CLOCK_MONOTONIC
	device   int32  // index into Timeline.Devices
	wait     int32  // the event of the wait that it was spent in, gap.None where there is none
}

// before reports whether s goes before o as evidence: it is longer, or the earlier of two equally long ones.
func (s stretch) before(o stretch) bool {
	return cmp.Or(cmp.Compare(o.length(), s.length()), cmp.Compare(s.device, o.device), cmp.Compare(s.from, o.from)) < 0
}

func (s stretch) length() uint64 { return s.to - s.from }

// maxLongest bounds the longest steps kept as evidence.
const maxLongest = gap.LongestSums

func newGroup(id cause.ID) *group { return &group{id: id} }

func (g *group) add(a *analysis, s *gap.Step, in *gap.Gap) {
	n := length(s)
	g.cost += n
	g.steps++
	g.sure[min(s.Sure, gap.Guessed)] += n
	g.inner[min(s.Inner, cause.Count-1)] += n
	if g.id == cause.NoCPU && s.WaiterTID != 0 {
		g.threads.add(threadKey(s.WaiterPID, s.WaiterTID), n) // it is about who has no CPU, not about who has it
	} else {
		g.threads.add(threadKey(s.PID, s.TID), n)
	}
	switch g.id {
	case cause.Worker, cause.Lock, cause.GIL:
		if s.WaiterTID == 0 { // the step is of who waited itself
			g.unseen += n
		}
	}
	if s.WaiterTID != 0 {
		g.waiters.add(threadKey(s.WaiterPID, s.WaiterTID), n)
	}
	if s.Stack != 0 {
		g.stacks.add(s.Stack, n)
		if s.Sure == gap.Seen {
			g.samples++
			g.seen.add(s.Stack, 1)
		}
		if s.Wait >= 0 { // an event of its own
			g.seen.add(s.Stack, leastAtPlace)
		}
	}
	if s.Op >= 0 && int(s.Op) < len(a.t.Ops) {
		g.calls.add(uint64(a.t.Ops[a.t.Outermost(s.Op)].Func), n)
	}
	if g.id == cause.NoCPU && s.Wait >= 0 && int(s.Wait) < len(a.t.Rec.Events) {
		if e := &a.t.Rec.Events[s.Wait]; e.Flags&event.Preempted != 0 && e.Args[1] != 0 {
			g.takers.add(e.Args[1], n)
		}
	}
	if k := a.kinds.at(s.From); k >= 0 {
		g.kinds[k] += n
	}
	g.link(a, in, n)
	g.inWindow(a, s, in, n)
	if n >= g.least {
		x := stretch{from: s.From, to: s.To, wait: s.Wait}
		if in != nil {
			x.device = in.Device
		}
		g.keep(x)
	}
}

// addPlain adds plain gaps.
func (g *group) addPlain(s *gap.Sum) {
	g.cost += s.Time
	g.steps += s.Count
	g.sure[gap.Seen] += s.Time
	g.inner[cause.Unknown] += s.Time
	g.threads.add(threadKey(s.PID, s.TID), s.Time)
	g.calls.add(uint64(s.Func), s.Time)
	if s.Certain {
		g.linked += s.Time
	} else {
		g.guessed += s.Time
	}
	for _, x := range s.Longest {
		g.keep(stretch{from: x.From, to: x.To, device: s.Device, wait: gap.None})
	}
}

// link records how reliably the call that ended a gap is known.
func (g *group) link(a *analysis, in *gap.Gap, n uint64) {
	if in == nil || in.Next == gap.None || int(in.Next) >= len(a.t.Activities) {
		g.linked += n // there is no call to be found
		return
	}
	switch act := &a.t.Activities[in.Next]; {
	case act.Link == timeline.Unlinked:
		g.lost += n
	case a.t.Confidence(in.Next) < 1:
		g.guessed += n
	default:
		g.linked += n
	}
}

// keep keeps the longest intervals, in the order of before.
func (g *group) keep(s stretch) {
	i := len(g.longest)
	for i > 0 && s.before(g.longest[i-1]) {
		i--
	}
	g.longest = slices.Insert(g.longest, i, s)
	if len(g.longest) >= maxLongest {
		g.longest = g.longest[:maxLongest]
		g.least = g.longest[maxLongest-1].length()
	}
}

// dominant is the function in which most of a group's time was spent, with the line and the stack of most of that.
type dominant struct {
	place
	seen  uint64 // steps that were seen there
	time  uint64 // ns
	stack uint64
}

// functions returns the functions in which time was spent, the most expensive first.
func (g *group) functions(p *places) []dominant {
	byFunction := map[code]int{}
	var out []dominant
	lines := map[code]uint64{}
	g.seen.flush()
	for _, e := range g.stacks.sorted() {
		at := p.list[p.of(e.key)]
		if at.kind == "" {
			continue
		}
		lines[at.code] += e.time
		i, ok := byFunction[at.function()]
		if !ok {
			i = len(out)
			byFunction[at.function()] = i
			out = append(out, dominant{place: at, stack: e.key})
		}
		out[i].time += e.time
		out[i].seen += g.seen.times[e.key]
		if lines[at.code] > lines[out[i].code] {
			out[i].place, out[i].stack = at, e.key
		}
	}
	sortDominant(out)
	return out
}

func sortDominant(list []dominant) {
	slices.SortStableFunc(list, func(x, y dominant) int { return cmp.Compare(y.time, x.time) })
}
