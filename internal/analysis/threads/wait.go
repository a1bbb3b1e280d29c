package threads

import (
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// Who is a thread that ended a wait or took a CPU.
type Who struct {
	PID, TID    uint32
	Name        string // "" where it is not known
	OtherThread bool   // no thread of the target
	Own         bool   // OtherThread, and InferScope's own: of the daemon or one of its helpers
	Interrupt   bool   // an interrupt or timer did it; PID and TID are who ran at the time, 0 for the idle task
	Unknown     bool   // nobody was seen
}

// Wait is one time that a thread was off its CPU, with everything known about it.
type Wait struct {
	From      uint64 // ns, CLOCK_MONOTONIC; it may lie before the window
	To        uint64 // ns; of an open wait: the end of the window
	Woken     uint64 // ns, when it could run again; To where nothing woke it
	Open      bool   // it was still off at the end of the window
	Preempted bool   // it could have run on: By took the CPU
	Throttled bool   // it could have run on, and the CPU went idle: the cgroup's quota was used up
	Reason    Reason // None where Preempted
	Text      string // for people: "read of pipe:[123]"
	By        Who    // who woke it, or took its CPU
	Stack     uint64 // index + 1 into Meta.Stacks of where it went to sleep; 0: no sample
}

// sampleSlack is how far a sample at a switch may lie from the beginning of its
// interval. Both hooks run in the same switch; 2 µs apart is common, a full stack walk
// by an unwinder lies between them.
const sampleSlack = 200_000 // ns

// Waits returns the details of waits. It is made once for a recording.
type Waits struct {
	rec     *recording.Recording
	why     classifier
	names   map[key]string
	ours    map[key]bool // threads of InferScope
	own     map[uint32]bool
	samples map[key][]int32 // at switches, by TS
}

// NewWaits prepares the details of the waits of rec.
func NewWaits(rec *recording.Recording) *Waits { return newIndex(rec).Waits() }

// Waits is NewWaits for who has an index.
func (x *Index) Waits() *Waits {
	rec := x.Rec
	w := &Waits{
		rec:     rec,
		why:     newClassifier(rec),
		names:   map[key]string{},
		ours:    map[key]bool{},
		own:     map[uint32]bool{},
		samples: map[key][]int32{},
	}
	for _, t := range rec.Meta.OtherThreads {
		w.names[key{t.PID, t.TID}] = t.Name
		w.ours[key{t.PID, t.TID}] = t.Own
	}
	for _, t := range rec.Meta.Threads {
		w.names[key{t.PID, t.TID}] = t.Name
	}
	for _, p := range rec.Meta.Processes {
		w.own[p.PID] = true
	}
	for _, i := range x.Switches {
		e := &rec.Events[i]
		k := key{e.PID, e.TID}
		w.samples[k] = append(w.samples[k], i)
	}
	return w
}

// Of returns the details of an interval of Build of the same recording, and whether
// it has any: what runs, and what is born, has none.
func (w *Waits) Of(iv Interval) (Wait, bool) {
	e := w.event(iv.Wait)
	if e == nil {
		return Wait{}, false
	}
	out := Wait{
		From: e.TS, To: end(e), Woken: end(e),
		Open: e.Flags&event.Open != 0 &&
			end(e) >= w.rec.Meta.To, Preempted: e.Flags&event.Preempted != 0, Stack: w.Stacks(e.PID, e.TID).Of(iv.Wait),
	}
	out.By = w.who(e)
	if out.Preempted {
		out.Woken = e.TS
		out.Throttled = e.Args[1] == 0
		return out, true
	}
	if e.Args[0] != 0 {
		out.Woken = min(out.To, plus(e.TS, e.Args[0]))
	}
	out.Reason = w.why.reason(e)
	out.Text = w.why.text(e, out.Reason)
	return out, true
}

// event returns the event of a wait by its index; nil where that is none.
func (w *Waits) event(i int32) *event.Event {
	if i < 0 || int(i) >= len(w.rec.Events) {
		return nil
	}
	if e := &w.rec.Events[i]; e.Kind == event.OffCPU && e.Flags&event.Mark == 0 {
		return e
	}
	return nil
}

// Who returns who a thread is.
func (w *Waits) Who(pid, tid uint32) Who {
	who := Who{PID: pid, TID: tid, Name: w.names[key{pid, tid}], OtherThread: pid != 0 && !w.own[pid]}
	who.Own = who.OtherThread && w.ours[key{pid, tid}]
	return who
}

func (w *Waits) who(e *event.Event) Who {
	by := w.Who(uint32(e.Args[1]>>32), uint32(e.Args[1]))
	by.Interrupt = e.Flags&event.FromIRQ != 0
	by.Unknown = e.Flags&event.Preempted == 0 && (e.Args[0] == 0 || e.Args[1] == 0 && !by.Interrupt)
	return by
}

// Text returns for people what the thread was blocked in: Wait.Text of the event with this index.
func (w *Waits) Text(i int32) string {
	if e := w.event(i); e != nil && e.Flags&event.Preempted == 0 {
		return w.why.text(e, w.why.reason(e))
	}
	return ""
}

// Subject is what a Text is made of: waits with the same one have the same Text.
type Subject struct {
	pid    uint32
	call   uint16
	reason Reason
	arg    uint64 // of files: the descriptor; of futexes: the address
	inode  uint64
}

// Subject returns what the wait of the event with this index, which has this reason, was for.
func (w *Waits) Subject(i int32, why Reason) Subject {
	e := w.event(i)
	if e == nil {
		return Subject{}
	}
	s := Subject{pid: e.PID, call: e.Func, reason: why}
	switch {
	case why == Futex:
		s.arg = e.Args[2]
	case w.why.onFile(e.Func, why):
		s.arg, s.inode = uint64(uint32(e.Args[2])), inode(e)
	}
	return s
}

// Stacks finds the stacks of one thread's waits.
type Stacks struct {
	rec     *recording.Recording
	samples []int32
	at      int
}

// Stacks returns what finds the stacks of a thread's waits. It is fast where they are
// asked for in the order of time.
func (w *Waits) Stacks(pid, tid uint32) *Stacks {
	return &Stacks{rec: w.rec, samples: w.samples[key{pid, tid}]}
}

// Of returns the stack of the sample that was taken when the event with this index
// began, as index + 1 into Meta.Stacks; 0 for none.
func (s *Stacks) Of(i int32) uint64 {
	if len(s.samples) == 0 || i < 0 || int(i) >= len(s.rec.Events) {
		return 0
	}
	ts := s.rec.Events[i].TS
	s.at = after(s.rec, s.samples, s.at, ts-min(ts, sampleSlack))
	best, distance := uint64(0), uint64(sampleSlack)
	for k := s.at; k < len(s.samples); k++ {
		e := &s.rec.Events[s.samples[k]]
		if e.TS > plus(ts, sampleSlack) {
			break
		}
		if d := max(e.TS, ts) - min(e.TS, ts); d < distance {
			best, distance = e.Args[0], d
		}
	}
	return best
}

// after returns the first of the events, by TS, that is not before a time. It looks
// near the hint first.
func after(rec *recording.Recording, events []int32, hint int, ts uint64) int {
	before := func(i int) bool { return rec.Events[events[i]].TS < ts }
	return Gallop(len(events), hint, before)
}
