package collectives

import (
	"cmp"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

const (
	// leastHang is from when on a rank that has not come is told of, ns: loading or compiling may take a second.
	leastHang = 3_000_000_000
	// maxStack is how many frames of a missing rank are told.
	maxStack = 32
)

// Hang is a collective that cannot end, as some ranks have not called it up to the end of the recording.
type Hang struct {
	Operation string    `json:"operation"` // that the others wait in
	Since     uint64    `json:"since_ns"`  // when those that came made their last call, CLOCK_MONOTONIC
	Waited    uint64    `json:"waited_ns"` // from then to the end of the recording
	Waiting   []uint32  `json:"waiting"`   // processes that came
	Missing   []missing `json:"missing"`
}

// missing is a rank that has not come.
type missing struct {
	PID    uint32 `json:"pid"`
	Rank   int    `json:"rank"` // in the communicator; -1: not known
	TID    uint32 `json:"tid"`  // of the thread that made its last call of the communicator
	Name   string `json:"name"`
	Ended  bool   `json:"ended"`           // the process has
	State  string `json:"state,omitempty"` // of the thread at the end: running, or blocked with what it waits for
	For    uint64 `json:"state_ns"`        // it has been in State
	Behind int    `json:"behind"`          // calls of the communicator that others made and it did not
	// Stack is where the thread was last seen since then, or went to sleep, the leaf first; absent where no sample says
	// it.
	Stack []string `json:"stack,omitempty"`
}

// local is a member of a communicator: a process, and what it calls the communicator.
type local struct {
	pid  uint32
	comm uint64
}

// hangs finds collectives that cannot end. Calls are counted from the last collective that was found on all ranks on;
// where there is none, from where NCCL's RAS says that ranks were even, or from the making of the communicators;
// nothing is said where calls may have been made that the recording does not have.
func (s *summing) hangs(list []threads.Thread) []Hang {
	if len(s.t.Collectives) == 0 || s.incomplete() {
		return nil
	}
	var out []Hang
	for _, from := range s.starts() {
		if h := s.hang(from, list); h != nil {
			out = append(out, *h)
		}
	}
	slices.SortFunc(out, func(x, y Hang) int {
		return cmp.Or(cmp.Compare(x.Since, y.Since), slices.Compare(x.Waiting, y.Waiting))
	})
	return out
}

// incomplete reports whether calls were lost or left out, or made by a graph, of which no call tells. Where the source
// of calls was reduced, the probes of one rank came off before those of another.
func (s *summing) incomplete() bool {
	if !s.t.Rec.Meta.Overhead.Whole(recording.CallsSource) {
		return true
	}
	for _, l := range s.t.Rec.Meta.Losses {
		switch l.Reason {
		case loss.RingFull, loss.Malformed, loss.EventsThrottled, loss.CallDepth, loss.ThreadStorage, loss.CallsSkipped,
			loss.HistoryDamaged, loss.RowsCut:
			if l.Count > 0 {
				return true
			}
		}
	}
	for _, i := range s.t.Skipped {
		e := &s.t.Rec.Events[i]
		if int(e.Func) < len(s.t.Rec.Meta.Functions) &&
			strings.HasPrefix(s.t.Rec.Meta.Functions[e.Func].Base, "nccl") {
			return true
		}
	}
	talks := s.t.Communicates()
	for i := range s.t.Activities {
		a := &s.t.Activities[i]
		if k := s.t.KernelIndex(a); a.Graph && k != timeline.None && talks[k] {
			return true
		}
	}
	return false
}

// starts returns for each communicator that is known in two processes or more from when on calls of each are counted.
func (s *summing) starts() []map[local]uint64 {
	last := map[uint64][]timeline.Activity{} // by the communicator of the least member
	c, _ := compared(s.t, timeline.Span{From: s.t.From, To: s.t.To})
	if c != nil {
		c.compare(func(set []timeline.Activity) {
			if own := c.comms[set[c.least].Op].comm; own != 0 {
				last[own] = slices.Clone(set)
			}
		})
	}
	var out []map[local]uint64
	for _, set := range last {
		from := map[local]uint64{}
		for i := range set {
			comm := c.comms[set[i].Op].comm
			if comm == 0 {
				break
			}
			launch := &s.t.Rec.Events[s.t.Ops[set[i].Op].Event]
			from[local{launch.PID, comm}] = launch.TS
		}
		if len(from) == len(set) {
			out = append(out, from)
		}
	}
	if len(last) > 0 {
		return out
	}
	if out = s.byRAS(); len(out) > 0 {
		return out
	}
	if out = s.byHash(); len(out) > 0 {
		return out
	}
	// Each process has made one communicator of as many ranks as there are processes: it is the same one.
	from, of := map[local]uint64{}, map[uint32]int{}
	for k := range s.ranks {
		from[local{k.pid, k.comm}] = 0
		of[k.pid]++
	}
	if len(s.ranks) < 2 {
		return nil
	}
	for k, n := range s.ranks {
		if n != uint64(len(s.ranks)) || of[k.pid] > 1 {
			return nil
		}
	}
	return []map[local]uint64{from}
}

// byHash returns the communicators of which all ranks were made in the time recorded, as they said themselves.
func (s *summing) byHash() []map[local]uint64 {
	groups, ranks, sizes := map[string]map[local]uint64{}, map[string]map[int]bool{}, map[string]int{}
	for of, x := range s.known {
		if x.Hash == "" || s.made[of] != 1 {
			continue
		}
		if groups[x.Hash] == nil {
			groups[x.Hash], ranks[x.Hash] = map[local]uint64{}, map[int]bool{}
		}
		groups[x.Hash][of], ranks[x.Hash][x.Rank], sizes[x.Hash] = 0, true, x.Ranks
	}
	var out []map[local]uint64
	for hash, from := range groups {
		if size := sizes[hash]; size > 1 && len(from) == size && len(ranks[hash]) == size {
			out = append(out, from)
		}
	}
	return out
}

// since are the calls of one member from a time on.
type since struct {
	of    local
	tid   uint32 // of the last call of all
	calls []call
}

// hang returns the hang of one communicator, nil where it has none.
func (s *summing) hang(from map[local]uint64, list []threads.Thread) *Hang {
	var all []since
	for of, ts := range from {
		all = append(all, s.since(of, ts))
	}
	slices.SortFunc(all, func(x, y since) int {
		return cmp.Or(cmp.Compare(x.of.pid, y.of.pid), cmp.Compare(x.of.comm, y.of.comm))
	})
	least, most := len(all[0].calls), 0
	for i := range all {
		least, most = min(least, len(all[i].calls)), max(most, len(all[i].calls))
	}
	if most == least {
		return nil
	}
	h := &Hang{}
	for i := range all {
		if x := &all[i]; len(x.calls) > least {
			h.Operation = x.calls[least].key.name
			h.Since = max(h.Since, x.calls[len(x.calls)-1].at) // who goes on calling does not wait
			if !s.together(x.of, len(all)) && !s.unfinished(x.of, x.calls[least].at) {
				return nil
			}
			h.Waiting = append(h.Waiting, x.of.pid)
		}
	}
	if h.Waited = s.t.To - min(s.t.To, h.Since); h.Waited < leastHang {
		return nil
	}
	for i := range all {
		if x := &all[i]; len(x.calls) == least {
			m, inside := s.absent(x, h.Since, list)
			if inside {
				return nil // it has called, and the call has not returned
			}
			m.Behind = most - least
			h.Missing = append(h.Missing, m)
		}
	}
	return h
}

// together reports whether a communicator is known to have as many ranks as were found: else it may be that of another
// group, whose collectives happened to end with these.
func (s *summing) together(of local, ranks int) bool {
	if x := s.known[of]; x != nil && x.Ranks == ranks {
		return true
	}
	return s.ranks[key{pid: of.pid, comm: of.comm}] == uint64(ranks) || s.sizes[of] == ranks
}

// unfinished reports whether the GPU was recorded for long enough after a call to know that its kernel has not ended.
func (s *summing) unfinished(of local, at uint64) bool {
	for op, p := range s.places() {
		launch := &s.t.Rec.Events[s.t.Ops[op].Event]
		if launch.PID == of.pid && p.comm == of.comm && launch.TS >= at {
			return false
		}
	}
	if s.t.Rec.Meta.GPU == nil {
		return false
	}
	return slices.ContainsFunc(s.t.Rec.Meta.GPU.Windows, func(w recording.GPUWindow) bool {
		// One that is open goes on, and is known as far as its newest record only.
		return w.PID == of.pid && w.Activity && w.Dropped == 0 && w.From <= at &&
			(w.To >= at+leastHang || w.End == "open")
	})
}

// since returns the calls of a communicator after a time, in order.
func (s *summing) since(of local, ts uint64) since {
	out := since{of: of, tid: of.pid}
	latest := uint64(0)
	for th, calls := range s.calls {
		for i := range calls {
			if th.pid != of.pid || calls[i].kind != exchange || calls[i].key.comm != of.comm {
				continue
			}
			if calls[i].at >= latest {
				latest, out.tid = calls[i].at, th.tid
			}
			if calls[i].at > ts {
				out.calls = append(out.calls, calls[i])
			}
		}
	}
	slices.SortFunc(out.calls, func(x, y call) int { return cmp.Compare(x.at, y.at) })
	return out
}

// absent reports what a rank that has not come does, and whether it is inside of a call of NCCL that has not returned.
func (s *summing) absent(x *since, from uint64, list []threads.Thread) (m missing, inside bool) {
	m = missing{PID: x.of.pid, Rank: -1, TID: x.tid}
	if c := s.known[x.of]; c != nil {
		m.Rank = c.Rank
	}
	for i := range s.t.Processes {
		if p := &s.t.Processes[i]; p.PID == m.PID {
			m.Name = format.Clean(p.Comm)
		}
	}
	for i := range s.t.Rec.Events {
		e := &s.t.Rec.Events[i]
		if e.Kind == event.Exit && e.PID == m.PID {
			m.Ended = true
			return m, false
		}
	}
	for i := range list {
		if th := &list[i]; th.PID == m.PID && th.TID == m.TID && len(th.Intervals) > 0 {
			last := th.Intervals[len(th.Intervals)-1]
			m.State, m.For = last.State.String(), last.Dur()
			if last.State == threads.Blocked && last.Reason != threads.None {
				m.State += ": " + last.Reason.String()
			}
		}
	}
	var latest threads.Sample
	s.t.Index.Stacks(func(one *threads.Sample) {
		if one.PID == m.PID && one.TID == m.TID && one.TS >= latest.TS && one.Stack != 0 {
			latest = *one
		}
	})
	if latest.TS < from && !strings.HasPrefix(m.State, threads.Blocked.String()) {
		return m, false // it went on since
	}
	for i := range threads.Walk(s.t.Rec, uint64(latest.Stack)) {
		f := &s.t.Rec.Meta.Frames[i]
		inside = inside || strings.HasPrefix(f.Name, "nccl")
		if len(m.Stack) < maxStack {
			m.Stack = append(m.Stack, placeOf(f))
		}
	}
	return m, inside
}

// placeOf names a frame.
func placeOf(f *recording.Frame) string {
	switch {
	case f.Kind == recording.PythonFrame:
		return format.Clean(cpu.PythonPlace(f.Name, f.File, f.Line))
	case f.File == "" || strings.Contains(f.Name, "+0x"): // whose name has the file
		return format.Clean(f.Name)
	}
	return format.Clean(f.Name + " (" + cpu.ShortFile(f.File) + ")")
}
