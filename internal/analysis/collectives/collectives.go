// Package collectives adds up what a program asked NCCL or RCCL for: by communicator and operation, with the time of the
// kernels that carried it out where the GPU was recorded.
package collectives

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// Summary is what all processes of the target asked for.
type Summary struct {
	Communicators []Communicator `json:"communicators"` // by process, then the one of most bytes first
	Calls         uint64         `json:"calls"`         // of operations; one that another one makes is not counted beside it
	Bytes         uint64         `json:"bytes"`         // that ranks gave, or got of a reduce-scatter
	Failed        uint64         `json:"failed"`        // calls of NCCL that returned an error
	// Skew is how far apart ranks come to collectives; absent where the kernels of fewer than two were recorded.
	Skew *Skew `json:"skew,omitempty"`
	// Hangs are collectives that cannot end, as a rank has not come for seconds.
	Hangs []Hang `json:"hangs,omitempty"`
	// RAS is what NCCL's RAS subsystem said when the recording was made; absent where it did not answer.
	RAS *recording.RAS `json:"ras,omitempty"`
}

// Communicator is one communicator of one process: one rank.
type Communicator struct {
	PID        uint32      `json:"pid"`
	Address    uint64      `json:"address"`         // what its process calls it
	Ranks      uint64      `json:"ranks,omitempty"` // in it; 0: not known
	Rank       int         `json:"rank"`            // -1: not known
	Hash       string      `json:"hash,omitempty"`  // the same for all ranks, as NCCL's RAS calls it; "": not known
	Calls      uint64      `json:"calls"`
	Bytes      uint64      `json:"bytes"`
	Operations []Operation `json:"operations"` // the one of most bytes first
}

// Operation is all calls of one function with one type of data.
type Operation struct {
	Name     string `json:"name"` // AllReduce
	Type     string `json:"type"` // bfloat16; "" where it is none that is known
	Calls    uint64 `json:"calls"`
	Bytes    uint64 `json:"bytes"`
	Smallest uint64 `json:"smallest_bytes"` // of one call
	Largest  uint64 `json:"largest_bytes"`
	Host     uint64 `json:"host_ns"` // in the calls themselves: enqueueing, and waiting where they block
	// Kernels are those that the calls launched outside of groups with others.
	Kernels uint64 `json:"kernels"`
	Kernel  uint64 `json:"kernel_ns"`
	// Copies are those of copy engines that calls launched instead, Copied the calls, and Copy the time from the first
	// to the last copy of each call or group.
	Copies uint64 `json:"copies"`
	Copied uint64 `json:"copied_calls"`
	Copy   uint64 `json:"copy_ns"`
	Seen   uint64 `json:"seen_bytes"` // of the calls whose kernels or copies were recorded
	// Algorithm and Bus are bandwidths in bytes/s, 0 where no work was seen or, of Bus, the number of ranks is not
	// known: Bus is what the links carry, by the factors of nccl-tests (doc/PERFORMANCE.md there).
	Algorithm float64 `json:"algorithm_bytes_per_s"`
	Bus       float64 `json:"bus_bytes_per_s"`
	// Choices are how NCCL carried out the calls whose launches were seen, where that is known: the most calls first.
	Choices []choice `json:"choices,omitempty"`
}

// key tells operations apart.
type key struct {
	pid  uint32
	comm uint64
	name string
	kind cuda.DataKind
}

// thread is where a thread is in its calls.
type thread struct{ pid, tid uint32 }

// call is one call of NCCL.
type call struct {
	at, end uint64
	kind    callKind
	key     key
	stream  uint64
	bytes   uint64
}

type callKind uint8

const (
	exchange callKind = iota
	groupStart
	groupEnd
)

// summing adds up calls.
type summing struct {
	t     *timeline.Timeline
	ranks map[key]uint64 // by process and communicator
	made  map[local]int  // how often the making of a communicator was recorded
	sizes map[local]int  // of communicators, as NCCL's RAS says
	known map[local]*recording.Communicator
	ops   map[key]*Operation
	calls map[thread][]call // in the order of time
	seen  map[callAt]bool   // the calls of which a kernel or a copy was recorded
	out   Summary
}

// Summarize adds up the calls of a recording, and compares ranks; nil where there is neither. What
// the threads did says what a rank does that has not come.
func Summarize(t *timeline.Timeline, list []threads.Thread) *Summary {
	skew := Arrive(t, timeline.Span{From: t.From, To: t.To}).skew(t)
	if len(t.Collectives) == 0 && skew == nil && t.Rec.Meta.RAS == nil {
		return nil
	}
	s := sum(t)
	s.out.RAS = t.Rec.Meta.RAS
	s.out.Skew = skew
	s.out.Hangs = s.hangs(list)
	s.kernels()
	s.copies()
	s.choices()
	s.finish()
	return &s.out
}

// sum adds up the calls.
func sum(t *timeline.Timeline) *summing {
	s := &summing{
		t: t, ranks: map[key]uint64{}, made: map[local]int{}, sizes: map[local]int{},
		known: map[local]*recording.Communicator{}, ops: map[key]*Operation{}, calls: map[thread][]call{},
		seen: map[callAt]bool{},
	}
	for i := range t.Rec.Meta.Communicators {
		c := &t.Rec.Meta.Communicators[i]
		s.known[local{c.PID, c.Address}] = c
	}
	s.out.Communicators = []Communicator{}
	events := slices.Clone(t.Collectives)
	slices.SortFunc(events, func(a, b int32) int { // of two that begin at once the longer one is the outer one
		x, y := &t.Rec.Events[a], &t.Rec.Events[b]
		return cmp.Or(cmp.Compare(x.TS, y.TS), cmp.Compare(y.Dur, x.Dur), cmp.Compare(a, b))
	})
	for _, at := range slices.Compact(events) {
		s.take(&t.Rec.Events[at])
	}
	return s
}

// take adds one call.
func (s *summing) take(e *event.Event) {
	base := s.t.Rec.Meta.Functions[e.Func].Base
	end := e.TS + e.Dur
	failed := e.Flags&event.Timed != 0 && e.Ret != 0 && e.Ret != inProgress
	if failed {
		s.out.Failed++
	}
	of := thread{e.PID, e.TID}
	list := s.calls[of]
	if n := len(list); n > 0 && list[n-1].end > e.TS && list[n-1].kind == exchange {
		return // ncclBcast calls ncclBroadcast
	}
	name, exchanges := exchangeName(base)
	switch {
	case base == "ncclGroupStart":
		s.calls[of] = append(list, call{at: e.TS, end: e.TS, kind: groupStart})
	case base == "ncclGroupEnd":
		s.calls[of] = append(list, call{at: e.TS, end: end, kind: groupEnd})
	case base == "ncclCommInitRank" || base == "ncclCommInitRankConfig":
		if !failed && e.Flags&event.Deref != 0 && e.Args[1] <= maxRanks {
			s.ranks[key{pid: e.PID, comm: e.Args[0]}] = e.Args[1]
			s.made[local{e.PID, e.Args[0]}]++
		}
	case exchanges:
		x := cuda.ReadExchange(&e.Args)
		k := key{e.PID, x.Communicator, name, x.Type}
		s.calls[of] = append(list, call{at: e.TS, end: end, key: k, stream: x.Stream, bytes: x.Bytes()})
		s.add(k, &x, e.Dur)
	}
}

const (
	inProgress = 7       // ncclInProgress: a communicator that does not block goes on by itself
	maxRanks   = 1 << 20 // more than any system has: what was read was no number of ranks
)

func (s *summing) add(k key, x *cuda.Exchange, host uint64) {
	o := s.ops[k]
	if o == nil {
		o = &Operation{Name: k.name, Type: k.kind.String(), Smallest: x.Bytes()}
		s.ops[k] = o
	}
	o.Calls++
	o.Bytes += x.Bytes()
	o.Smallest, o.Largest = min(o.Smallest, x.Bytes()), max(o.Largest, x.Bytes())
	o.Host += host
}

// kernels adds the kernels that communicate to the calls that launched them. A group launches at its end, for all of its
// calls at once: its kernels are theirs where they are of one operation.
func (s *summing) kernels() {
	talks := s.t.Communicates()
	if talks == nil {
		return
	}
	for i := range s.t.Activities {
		a := &s.t.Activities[i]
		k := s.t.KernelIndex(a)
		if k == timeline.None || !talks[k] || a.Op == timeline.None || a.Graph {
			continue
		}
		op := &s.t.Ops[a.Op]
		launch := &s.t.Rec.Events[op.Event]
		of := thread{launch.PID, launch.TID}
		calls := launched(s.calls[of], launch.TS)
		if len(calls) == 0 {
			continue
		}
		o := s.see(of, calls)
		o.Kernels++
		o.Kernel += a.End - a.Start
	}
}

// see notes that work of some calls of one operation was recorded, and returns the operation.
func (s *summing) see(of thread, calls []int) *Operation {
	list := s.calls[of]
	o := s.ops[list[calls[0]].key]
	for _, at := range calls {
		if k := (callAt{of, at}); !s.seen[k] {
			s.seen[k] = true
			o.Seen += list[at].bytes
		}
	}
	return o
}

// maxGroup bounds how many calls of a group are looked at.
const maxGroup = 4096

// launched returns which calls of a thread launched something at a time: one, or those of the group that ends then where
// all are of one operation. It is none where that is not certain.
func launched(list []call, at uint64) []int { return ofOneKey(list, together(list, at)) }

// ofOneKey returns calls where all are of one operation, else none.
func ofOneKey(list []call, calls []int) []int {
	for _, i := range calls {
		if list[i].key != list[calls[0]].key {
			return nil
		}
	}
	return calls
}

// together is launched for calls of any operations.
func together(list []call, at uint64) []int {
	i, found := slices.BinarySearchFunc(list, at, func(c call, at uint64) int { return cmp.Compare(c.at, at) })
	if !found {
		i--
	}
	if i < 0 || list[i].end < at {
		return nil
	}
	if list[i].kind == exchange {
		return []int{i}
	}
	var out []int
	depth := 0
	for j := i - 1; j >= 0 && i-j < maxGroup; j-- {
		switch list[j].kind {
		case groupEnd:
			depth++
		case groupStart:
			if depth == 0 {
				return out
			}
			depth--
		case exchange:
			out = append(out, j)
		}
	}
	return nil // the group began before the recording
}

// finish orders what was added up.
func (s *summing) finish() {
	by, sizes := map[key]*Communicator{}, s.sizesByRAS()
	for k, o := range s.ops {
		at := key{pid: k.pid, comm: k.comm}
		c := by[at]
		if c == nil {
			c = &Communicator{PID: k.pid, Address: k.comm, Rank: -1, Ranks: cmp.Or(s.ranks[at], sizes[k.pid])}
			if x, known := s.known[local{k.pid, k.comm}]; known {
				c.Rank, c.Hash, c.Ranks = x.Rank, x.Hash, cmp.Or(s.ranks[at], uint64(x.Ranks))
			}
			by[at] = c
		}
		if o.Time() > 0 {
			o.Algorithm = float64(o.Seen) / (float64(o.Time()) / 1e9)
			o.Algorithm *= given(k.name, c.Ranks)
			o.Bus = o.Algorithm * busFactor(k.name, c.Ranks)
		}
		o.orderChoices()
		c.Operations = append(c.Operations, *o)
		c.Calls += o.Calls
		c.Bytes += o.Bytes
		s.out.Calls += o.Calls
		s.out.Bytes += o.Bytes
	}
	for _, c := range by {
		slices.SortFunc(c.Operations, func(x, y Operation) int {
			return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Name, y.Name), cmp.Compare(x.Type, y.Type))
		})
		s.out.Communicators = append(s.out.Communicators, *c)
	}
	slices.SortFunc(s.out.Communicators, func(x, y Communicator) int {
		return cmp.Or(cmp.Compare(x.PID, y.PID), cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Address, y.Address))
	})
}

// Time returns the GPU time of the calls, ns.
func (o *Operation) Time() uint64 { return o.Kernel + o.Copy }

// given is how much larger the data that a bandwidth is of is than what a call names: all of it, of all ranks, where
// each gets a part or gives one (nccl-tests).
func given(name string, ranks uint64) float64 {
	if ranks > 0 && inParts(name) {
		return float64(ranks)
	}
	return 1
}

// inParts reports whether a call of an operation names the part of one rank.
func inParts(name string) bool {
	switch name {
	case "AllGather", "ReduceScatter", "AllToAll", "Gather", "Scatter":
		return true
	}
	return false
}

// busFactor is how much a link carries of what a bandwidth is of (nccl-tests, doc/PERFORMANCE.md); 0 where that is not
// known.
func busFactor(name string, ranks uint64) float64 {
	n := float64(ranks)
	switch {
	case ranks < 2:
		return 0
	case name == "AllReduce":
		return 2 * (n - 1) / n
	case inParts(name):
		return (n - 1) / n
	}
	return 1
}

// exchangeName returns what an operation is called in reports.
func exchangeName(base string) (string, bool) {
	switch base {
	case "ncclAllReduce",
		"ncclReduceScatter",
		"ncclAllGather",
		"ncclBroadcast",
		"ncclReduce",
		"ncclGather",
		"ncclScatter",
		"ncclSend",
		"ncclRecv":
		return format.Clean(base[len("nccl"):]), true
	case "ncclAlltoAll", "ncclAllToAll":
		return "AllToAll", true
	case "ncclBcast":
		return "Broadcast", true
	}
	return "", false
}
