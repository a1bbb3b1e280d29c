package threads

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/record"
)

// Who is a thread that ended a wait or took a CPU.
type Who struct {
	PID, TID  uint32
	Name      string // "" where it is not known
	Stranger  bool   // no thread of the target
	Interrupt bool   // an interrupt or timer did it; PID and TID are who ran at the time, 0 for the idle task
	Unknown   bool   // nobody was seen
}

// Wait is one time that a thread was off its CPU, with everything known about it.
type Wait struct {
	PID, TID  uint32
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

// Waits gives the details of waits. It is made once for a recording.
type Waits struct {
	rec     *record.Recording
	why     classifier
	names   map[key]string
	own     map[uint32]bool
	samples map[key][]int32 // at switches, by TS
}

// NewWaits prepares the details of the waits of rec.
func NewWaits(rec *record.Recording) *Waits {
	w := &Waits{rec: rec, why: newClassifier(rec), names: map[key]string{}, own: map[uint32]bool{}, samples: map[key][]int32{}}
	for _, t := range rec.Meta.Strangers {
		w.names[key{t.PID, t.TID}] = t.Name
	}
	for _, t := range rec.Meta.Threads {
		w.names[key{t.PID, t.TID}] = t.Name
	}
	for _, p := range rec.Meta.Processes {
		w.own[p.PID] = true
	}
	for i := range rec.Events {
		if e := &rec.Events[i]; e.Kind == event.Sample && e.Func == uint16(event.Switch) {
			k := key{e.PID, e.TID}
			w.samples[k] = append(w.samples[k], int32(i))
		}
	}
	return w
}

// Of returns the details of an interval of Build of the same recording, and whether
// it has any: what runs, and what is born, has none.
func (w *Waits) Of(iv Interval) (Wait, bool) {
	if iv.Wait < 0 || int(iv.Wait) >= len(w.rec.Events) {
		return Wait{}, false
	}
	e := &w.rec.Events[iv.Wait]
	if e.Kind != event.OffCPU || e.Flags&event.Mark != 0 {
		return Wait{}, false
	}
	out := Wait{
		PID: e.PID, TID: e.TID, From: e.TS, To: end(e), Woken: end(e),
		Open: e.Flags&event.Open != 0, Preempted: e.Flags&event.Preempted != 0, Stack: w.stack(e),
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

func (w *Waits) who(e *event.Event) Who {
	by := Who{PID: uint32(e.Args[1] >> 32), TID: uint32(e.Args[1]), Interrupt: e.Flags&event.FromIRQ != 0}
	by.Unknown = e.Flags&event.Preempted == 0 && e.Args[0] == 0
	by.Name = w.names[key{by.PID, by.TID}]
	by.Stranger = by.PID != 0 && !w.own[by.PID]
	return by
}

// stack returns the stack of the sample that was taken when e began.
func (w *Waits) stack(e *event.Event) uint64 {
	samples := w.samples[key{e.PID, e.TID}]
	from := e.TS - min(e.TS, sampleSlack)
	i, _ := slices.BinarySearchFunc(samples, from, func(i int32, ts uint64) int { return cmp.Compare(w.rec.Events[i].TS, ts) })
	best, distance := uint64(0), uint64(sampleSlack)
	for ; i < len(samples); i++ {
		s := &w.rec.Events[samples[i]]
		if s.TS > plus(e.TS, sampleSlack) {
			break
		}
		if d := max(s.TS, e.TS) - min(s.TS, e.TS); d < distance {
			best, distance = s.Args[0], d
		}
	}
	return best
}
