package diagnose

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
)

// facts are the texts about a group.
type facts struct {
	id        cause.ID
	functions []dominant // the dearest first
	called    bool       // functions are those that made the call, weighed by samples
	place     string     // "encode (infer.py:12)"; "" where no stack tells
	doer      string     // the thread whose doing it was, where it is one: "loader (4712)"
	waiter    string     // who waited, where that is another
	innerID   cause.ID   // what the doer did, where somebody waited for it,
	inner     string     // in words: "reading from the disk"
	call      string     // CUDA function; ""
	inCalls   bool       // most of the time is spent in calls
	object    string     // what the longest wait was for: "read of /data/x"; ""
	graphs    bool       // it is about launching graphs
	others    bool       // most of the CPU time that its thread lacked was taken by other programs
	by        string     // who ended the longest wait, or took the CPU
	ownError  bool       // an error of a GPU is as a rule one of the program
}

// facts collects what is known about a group.
func (a *analysis) facts(g *group) facts {
	w := facts{id: g.id, functions: g.functions(a.places)}
	calls := &g.calls
	if g.id == cause.LaunchOverhead { // a synchronization is no place where anything is launched
		calls = a.withoutSyncs(calls)
	}
	if top := calls.most(); top.time > 0 {
		w.call = format.Clean(a.t.Rec.Meta.Functions[top.key].Base)
		w.inCalls = 2*g.calls.all > g.cost
	}
	if w.call != "" &&
		2*g.stacks.all < g.cost { // it is known by its calls, and what stacks it has stand for little of it
		if list := a.callersOf(w.call); len(list) > 0 || len(w.functions) == 0 {
			w.functions, w.called = list, true
		}
	}
	if g.id == cause.LaunchOverhead {
		w.functions = slices.DeleteFunc(w.functions, a.synchronizes)
	}
	w.place, w.graphs = placeOf(w.functions), a.byGraphs(g)
	if top := g.threads.most(); top.time*2 > g.cost && uint32(top.key) != 0 && g.unseen*2 <= g.cost {
		w.doer = a.who(top.key)
	}
	if top := g.waiters.most(); top.time*2 > g.waiters.all && uint32(top.key) != 0 {
		w.waiter = a.who(top.key)
	}
	w.innerID = most(&g.inner)
	w.inner = doingWords(w.innerID)
	a.wait(g, &w)
	return w
}

// takenByOthers returns how much of the time without a CPU was used by other programs, ns.
func (a *analysis) takenByOthers(g *group) uint64 {
	sum := uint64(0)
	for _, e := range g.takers.sorted() {
		if !slices.ContainsFunc(
			a.t.Rec.Meta.Processes,
			func(p recording.Process) bool { return uint64(p.PID) == e.key>>32 },
		) {
			sum += e.time
		}
	}
	return sum
}

// withoutSyncs returns the calls that do not wait for the GPU.
func (a *analysis) withoutSyncs(calls *tally) *tally {
	out := &tally{}
	for _, e := range calls.sorted() {
		if a.t.Rec.Meta.Functions[e.key].Group != "sync" {
			out.add(e.key, e.time)
		}
	}
	return out
}

// synchronizes reports whether a stack contains a call that waits for the GPU.
func (a *analysis) synchronizes(d dominant) bool {
	for i := range threads.Walk(a.t.Rec, d.stack) {
		f := &a.t.Rec.Meta.Frames[i]
		if f.Kind == recording.NativeFrame && isCUDA(f.Name) && strings.Contains(f.Name, "Synchronize") {
			return true
		}
	}
	return false
}

// leastAtPlace is how many times something must be seen in a function at least for that to be the place, unless most of
// the time is spent there.
const leastAtPlace = 5

// placeOf names where time was spent: the function of most of it, or, where that is one of many of a library, the
// library. A few samples in one of many functions are no place.
func placeOf(list []dominant) string {
	if len(list) == 0 || !list[0].isCode() {
		return ""
	}
	all, file := uint64(0), uint64(0)
	for i := range list {
		all += list[i].time
		if list[i].kind == recording.NativeFrame && list[i].file == list[0].file {
			file += list[i].time
		}
	}
	if top := &list[0]; top.kind == recording.NativeFrame && top.file != "" && 3*top.time < all && 2*file > all {
		return format.Clean(cpu.ShortFile(top.file))
	}
	if list[0].seen < leastAtPlace && 2*list[0].time <= all {
		return ""
	}
	return list[0].text()
}

// most returns the longest cause; Unknown if there is none.
func most(list *[cause.Count]uint64) cause.ID {
	best := cause.Unknown
	for id := cause.Unknown + 1; id < cause.Count; id++ {
		if list[id] > list[best] || best == cause.Unknown && list[id] > 0 {
			best = id
		}
	}
	return best
}

// wait describes the longest wait and who ended it.
func (a *analysis) wait(g *group, w *facts) {
	if g.id == cause.NoCPU || g.id == cause.Throttled {
		if top := g.takers.most(); 2*top.time > g.cost {
			w.by = a.who(top.key)
		}
		w.others = 2*a.takenByOthers(g) > g.takers.all
		return
	}
	for _, s := range g.longest {
		if s.wait < 0 || int(s.wait) >= len(a.t.Rec.Events) {
			continue
		}
		if a.waits == nil {
			a.waits = threads.NewWaits(a.t.Rec)
		}
		one, ok := a.waits.Of(threads.Interval{Wait: s.wait})
		if !ok {
			continue
		}
		w.object = format.Clean(one.Text)
		if !one.By.Unknown && !one.By.Interrupt && one.By.TID != 0 {
			w.by = a.who(threadKey(one.By.PID, one.By.TID))
		}
		return
	}
}

// doingWords describes an activity in a few words, to follow "is".
func doingWords(id cause.ID) string {
	return map[cause.ID]string{
		cause.PythonWork:     "running Python code",
		cause.NativeWork:     "running native code",
		cause.Preprocessing:  "preprocessing",
		cause.LaunchOverhead: "launching work",
		cause.HostSync:       "waiting for the GPU",
		cause.SyncCopy:       "copying",
		cause.Allocation:     "allocating memory",
		cause.Worker:         "waiting for yet another one",
		cause.Lock:           "waiting for a lock",
		cause.GIL:            "waiting for Python's lock",
		cause.GC:             "collecting garbage",
		cause.Serialization:  "serializing objects",
		cause.Compilation:    "compiling or loading code",
		cause.Disk:           "reading or writing files",
		cause.Network:        "waiting for the network",
		cause.PageFaults:     "waiting for pages of memory",
		cause.NoCPU:          "waiting for a CPU",
		cause.Throttled:      "held back by the CPU quota of its cgroup",
		cause.Sleep:          "sleeping",
		cause.NoWork:         "waiting for work",
		cause.Dependency:     "waiting for other work of the GPU",
		cause.PipelineBubble: "waiting for another GPU",
	}[id]
}

// symbolName shortens the name of a native function.
func symbolName(name string) string {
	if i := strings.IndexByte(name, '('); i > 0 && !strings.HasPrefix(name, "(") {
		name = name[:i]
	}
	return name
}

// remoteLaunchers names the threads that launch most of what a GPU does, and ran on another node than that for most of
// their time.
func (a *analysis) remoteLaunchers() []Evidence {
	if a.topology == nil {
		return nil
	}
	var out []Evidence
	for i := range a.topology.Launchers {
		l := &a.topology.Launchers[i]
		if l.Share <= 0.5 || !l.Remote() || len(out) == maxRows {
			continue
		}
		g := &a.topology.GPUs[l.GPU]
		out = append(out, Evidence{Text: fmt.Sprintf(
			"GPU %d (%s) is on NUMA node %d; %s, which launched %s of what it did, ran on other nodes for %s of its time (%s), "+
				"mostly on node %d.",
			g.ID, g.Bus, g.Node, a.who(threadKey(l.PID, l.TID)), format.Percent(l.Share),
			format.Percent(share(l.Far, l.Ran)), format.Span(l.Far), l.Node,
		)})
	}
	return out
}

// remoteText describes the NUMA distance of threads and memory.
func (a *analysis) remoteText() string {
	p := &a.cpu.Pressure
	s := fmt.Sprintf(
		"The GPU is on NUMA node %d; threads ran on other nodes for %s of their time",
		p.GPUNode,
		format.Percent(p.RemoteRunning),
	)
	if len(p.Pages) > 0 {
		s += fmt.Sprintf(", and %s of the memory lies there", format.Percent(p.RemoteShare))
	}
	return s + "."
}

// rounded rounds a confidence, so that a report does not look more exact than it is.
func rounded(f float64) float64 { return math.Round(min(1, max(0, f))*100) / 100 }
