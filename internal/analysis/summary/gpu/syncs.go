package gpu

import (
	"cmp"
	"math"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/format/symname"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// syncKey is who waited by which call for what kind of thing.
type syncKey struct {
	process, thread int32 // None where the thread is not known
	fn              int32 // None where the call is not known
	kind            timeline.SyncType
}

type syncRow struct {
	syncGroup
	what vote[string]
}

// syncs makes the table of waits.
func (a *analysis) syncs() []syncGroup {
	t := a.t
	rows := map[syncKey]*syncRow{}
	for i := range t.Syncs {
		y := &t.Syncs[i]
		r := a.syncRow(rows, y)
		dur := min(y.End, t.To) - min(max(y.Start, t.From), min(y.End, t.To))
		r.Count++
		r.Time += dur
		r.Longest = max(r.Longest, dur)
		if y.Activity == timeline.None {
			r.Idle++
			continue
		}
		r.what.add(a.describe(&t.Activities[y.Activity]))
	}
	out := []syncGroup{}
	for _, r := range rows {
		r.For, r.ForCount = r.what.most()
		out = append(out, r.syncGroup)
	}
	return top(out, maxSyncs, func(x, y *syncGroup) int {
		return cmp.Or(cmp.Compare(y.Time, x.Time), cmp.Compare(y.Count, x.Count), cmp.Compare(x.PID, y.PID),
			cmp.Compare(x.TID, y.TID), cmp.Compare(x.Call, y.Call), cmp.Compare(x.Type, y.Type))
	})
}

func (a *analysis) syncRow(rows map[syncKey]*syncRow, y *timeline.Sync) *syncRow {
	t := a.t
	key := syncKey{y.Process, timeline.None, timeline.None, y.Type}
	if y.Op != timeline.None {
		key.thread = a.known.thread(t, y.Op)
		key.fn = int32(t.Ops[t.Outermost(y.Op)].Func)
	}
	r := rows[key]
	if r != nil {
		return r
	}
	r = &syncRow{syncGroup: syncGroup{PID: t.Processes[y.Process].PID, Type: syncType(y.Type)}}
	if key.thread != timeline.None {
		th := &t.Threads[key.thread]
		r.TID, r.Thread, r.Call = th.TID, th.Name, a.function(uint16(key.fn))
	}
	rows[key] = r
	return r
}

// describe returns the kind of an activity.
func (a *analysis) describe(act *timeline.Activity) string {
	e := &a.t.Rec.Events[act.Event]
	switch act.Kind {
	case timeline.Copy:
		return "a copy " + cuda.CopyKind(e.Ret).String()
	case timeline.Set:
		return "a memset"
	}
	i := a.t.KernelIndex(act)
	if i == timeline.None {
		return "a kernel"
	}
	return a.short(i)
}

// short names a kernel, and remembers the name: shortening costs microseconds.
func (a *analysis) short(i int32) string {
	if a.names == nil {
		a.names = make([]string, len(a.t.Rec.Meta.GPU.Kernels))
	}
	if a.names[i] == "" {
		a.names[i] = symname.Shorten(a.t.Rec.Meta.GPU.Kernels[i].Name)
	}
	return a.names[i]
}

func syncType(y timeline.SyncType) string {
	names := [...]string{"other", "event", "stream waits for event", "stream", "context", "copy"}
	return names[min(int(y), len(names)-1)]
}

// overheads sums what CUPTI and the driver say of themselves.
func (a *analysis) overheads() []Overhead {
	rows := map[int32]*Overhead{}
	for _, i := range a.t.Overheads {
		e := &a.t.Rec.Events[i]
		r := rows[e.Ret]
		if r == nil {
			r = &Overhead{Kind: overhead(e.Ret)}
			rows[e.Ret] = r
		}
		r.Count++
		r.Time += a.inside(e)
	}
	out := []Overhead{}
	for _, r := range rows {
		out = append(out, *r)
	}
	return top(out, len(out), func(x, y *Overhead) int {
		return cmp.Or(cmp.Compare(y.Time, x.Time), cmp.Compare(y.Count, x.Count), cmp.Compare(x.Kind, y.Kind))
	})
}

// inside returns the part of an event in the window, in ns.
func (a *analysis) inside(e *event.Event) uint64 {
	end := e.TS + min(e.Dur, math.MaxUint64-e.TS)
	from := min(max(e.TS, a.t.From), a.t.To)
	return max(from, min(end, a.t.To)) - from
}

// overhead names CUpti_ActivityOverheadKind >> 16, as bpf/event.h carries it: CUPTI reference, "Activity API".
func overhead(kind int32) string {
	names := map[int32]string{
		0: "driver compiler", 1: "CUPTI buffer flush", 2: "CUPTI instrumentation", 3: "CUPTI resources",
		4: "runtime triggered module loading",
		5: "lazy function loading", 6: "command buffer full", 7: "activity buffer request", 8: "UVM activity init",
	}
	if s, ok := names[kind]; ok {
		return s
	}
	return "other"
}

// ranges sums the ranges that the program named.
func (a *analysis) ranges() []Range {
	names := a.t.Rec.Meta.GPU.Ranges
	rows, with := make([]Range, len(names)), make([]map[int]*Attributes, len(names))
	for _, i := range a.t.Ranges {
		e := &a.t.Rec.Events[i]
		n := int(e.Ret) - 1
		if n < 0 || n >= len(rows) {
			continue
		}
		dur := a.inside(e)
		rows[n].Name = names[n]
		rows[n].Count++
		rows[n].Time += dur
		rows[n].Longest = max(rows[n].Longest, dur)
		if values := a.attributesOf(e); values > 0 {
			if with[n] == nil {
				with[n] = map[int]*Attributes{}
			}
			if with[n][values] == nil {
				with[n][values] = &Attributes{Values: a.t.Rec.Meta.GPU.Attributes[values-1]}
			}
			with[n][values].Count++
			with[n][values].Time += dur
		}
	}
	used := rows[:0]
	for n, r := range rows {
		if r.Count > 0 {
			r.Attributes = sortedAttributes(with[n])
			used = append(used, r)
		}
	}
	return top(used, maxRanges, func(x, y *Range) int {
		return cmp.Or(cmp.Compare(y.Time, x.Time), cmp.Compare(y.Count, x.Count), cmp.Compare(x.Name, y.Name))
	})
}

// attributesOf returns index + 1 of the attributes of a scope; 0 for none.
func (a *analysis) attributesOf(e *event.Event) int {
	if at := e.Args[3]; e.Func == event.ScopeRange && at <= uint64(len(a.t.Rec.Meta.GPU.Attributes)) {
		return int(at)
	}
	return 0
}

// maxAttributes is how many different attributes of a range are told: a program can give each use its own.
const maxAttributes = 8

func sortedAttributes(all map[int]*Attributes) []Attributes {
	var out []Attributes
	for _, x := range all {
		out = append(out, *x)
	}
	slices.SortFunc(out, func(x, y Attributes) int {
		return cmp.Or(cmp.Compare(y.Time, x.Time), cmp.Compare(y.Count, x.Count), cmp.Compare(x.Values, y.Values))
	})
	return out[:min(len(out), maxAttributes)]
}
