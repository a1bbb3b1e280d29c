package timeline

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
)

// builder makes a timeline.
type builder struct {
	t         *Timeline
	parts     func(n int) [][2]int
	processes *processes
	classes   []class
	tables    idTables
	scans     []*scan
	marks     [][]int32 // by thread: its calls that can start something, wait, or make a stream wait
	causes    causality
	latest    []uint64 // by table: when the last call was made that an activity has the id of, ns; 0: there is none
	loose     []int32  // activities without a call whose calls the agent did not see
	handles   handles
	decoder   *cuda.Decoder
	syncs     []int32          // events
	waits     map[int32]*waits // by process: its calls that can wait; nil: not made yet
	queues    []queue          // by stream
}

// finish makes what rests on the links between calls and activities.
func (b *builder) finish() {
	b.linkByOrder()
	b.exchange()
	b.nameStreams()
	b.narrow()
	b.markUncertainEdges()
	b.sync()
	b.depend()
	b.t.sortSyncs()
	b.t.Clock = b.causes.clock()
	for len(b.t.Seen) < len(b.t.Processes) {
		b.t.Seen = append(b.t.Seen, Seen{})
	}
}

// meta returns what the agents said; never nil.
func (b *builder) meta() *recording.GPU {
	if b.t.Rec.Meta.GPU == nil {
		return &recording.GPU{}
	}
	return b.t.Rec.Meta.GPU
}

// see makes t.Seen of the recording's windows.
func (b *builder) see() {
	type lists struct{ activity, calls, lossy []Span }
	all := map[int32]*lists{}
	for _, w := range b.meta().Windows {
		p := b.processes.process(w.PID, w.From)
		l := all[p]
		if l == nil {
			l = &lists{}
			all[p] = l
		}
		s := Span{max(w.From, b.t.From), min(w.To, b.t.To)}
		if w.Activity {
			l.activity = append(l.activity, s)
		}
		if w.Activity && w.Dropped > 0 {
			l.lossy = append(l.lossy, s)
		}
		if w.Calls {
			l.calls = append(l.calls, s)
		}
	}
	b.t.Seen = make([]Seen, len(b.t.Processes))
	for p, l := range all {
		b.t.Seen[p] = Seen{Activity: Join(l.activity), Calls: Join(l.calls), Lossy: Join(l.lossy)}
	}
	for _, w := range b.meta().Windows {
		if w.Activity {
			b.t.Seen[b.processes.process(w.PID, w.From)].Dropped += w.Dropped
		}
	}
}

// linker links a stretch of the activities of one device by correlation id.
type linker struct {
	b           *builder
	first, last int32
	causes      causality
	loose       []int32
	copies      []int32
	latest      []uint64 // by table: see builder.latest
	unsorted    bool
	near        []tableAt // by stream
}

// link finds the calls with the correlation ids of activities, and compares their times.
func (l *linker) link() {
	b := l.b
	l.near, l.latest = make([]tableAt, len(b.t.Streams)), make([]uint64, len(b.tables.list))
	before := uint64(0)
	if l.first > 0 {
		before = b.t.Activities[l.first-1].Start
	}
	if slices.ContainsFunc(b.t.Devices, func(d Device) bool { return d.First == l.first }) {
		before = 0
	}
	for i := l.first; i < l.last; i++ {
		a := &b.t.Activities[i]
		l.unsorted = l.unsorted || a.Start < before
		before = a.Start
		if a.Kind == Copy && !a.Graph {
			l.copies = append(l.copies, i)
		}
		table := b.tables.at(&l.near[a.Stream], b.t.Streams[a.Stream].Process, a.Start)
		a.Op = b.tables.find(table, uint32(a.Op), a.Start, b.t.Ops)
		if a.Op == None {
			if table != None && b.missing(table)&kindGroup(a) != 0 {
				l.loose = append(l.loose, i)
			}
			continue
		}
		a.Link = ByID
		if a.Graph {
			a.Link = ByGraph
		}
		asked := b.t.Ops[a.Op].Start
		l.latest[table] = max(l.latest[table], asked)
		l.causes.launched(asked, a.Start)
	}
}

// linkers returns what links all activities.
func (b *builder) linkers() []*linker {
	var out []*linker
	for d := range b.t.Devices {
		dev := &b.t.Devices[d]
		for _, part := range b.parts(int(dev.Last - dev.First)) {
			out = append(out, &linker{b: b, first: dev.First + int32(part[0]), last: dev.First + int32(part[1])})
		}
	}
	return out
}

// arrange takes the results of the linkers, and brings the activities of each device into their order.
func (b *builder) arrange(linkers []*linker) {
	unsorted := false
	b.latest = make([]uint64, len(b.tables.list))
	for _, l := range linkers {
		b.causes.add(&l.causes)
		for table, at := range l.latest {
			b.latest[table] = max(b.latest[table], at)
		}
		b.t.Copies = append(b.t.Copies, l.copies...)
		b.loose = append(b.loose, l.loose...)
		unsorted = unsorted || l.unsorted
	}
	if !unsorted {
		return
	}
	t := b.t
	for i := range t.Devices {
		list := t.Activities[t.Devices[i].First:t.Devices[i].Last]
		slices.SortFunc(
			list,
			func(x, y Activity) int { return cmp.Or(cmp.Compare(x.Start, y.Start), cmp.Compare(x.Event, y.Event)) },
		)
	}
	next := make([]int32, len(t.Streams))
	b.loose, t.Copies = b.loose[:0], t.Copies[:0]
	for i := range t.Activities {
		a := &t.Activities[i]
		if a.Kind == Copy && !a.Graph {
			t.Copies = append(t.Copies, int32(i))
		}
		if list := b.of(a.Stream).list; list != nil {
			list[next[a.Stream]] = int32(i)
			next[a.Stream]++
		}
		if table := b.tables.table(t.Streams[a.Stream].Process, a.Start); a.Op == None && table != None &&
			b.missing(table)&kindGroup(a) != 0 {
			b.loose = append(b.loose, int32(i))
		}
	}
}
