package replay

import (
	"regexp"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/quantile"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// Row is a kind of small activities that a thread launches one after the other, so that one of them could take the
// place of all.
type Row uint8

// The kinds.
const (
	NoRow Row = iota
	Uploads
	Downloads
	Elementwise
	Rows
)

// rowTotal is what all rows of a kind hold.
type rowTotal struct {
	Rows, Count int
	Own         uint64 // ns of the activities
	Bytes       uint64 // of copies
	Floor       uint64 // ns that one takes which has next to nothing to do
	durations   []uint64
}

const (
	// leastRow is from how many activities on they are a row.
	leastRow = 8
	// smallCopy is up to how many bytes a copy takes less time than the calls that make it.
	smallCopy = 64 << 10
	// smallKernel is up to how many ns a kernel takes no more than launching it from a framework.
	smallKernel = 10_000
	// mostBetween is how many ns a thread computes at most between two launches of a row: more is work of the program's
	// own, which stays whatever is launched.
	mostBetween = 20_000
	// mostAwaited is how many ns it waits at most for a small copy itself, and not for what the GPU does before.
	mostAwaited = 50_000
	// floorPercent is how many percent of a row's activities take no more than its floor.
	floorPercent = 5
)

// elementwise matches kernels that compute each element by itself: of PyTorch, its compiler, CuPy, XLA and ggml. Only
// such kernels can be fused whatever they compute.
var elementwise = regexp.MustCompile(
	`elementwise|pointwise|triton_poi_|multi_tensor_apply|^cupy_\w+__|^loop_\w*fusion|^wrapped_|k_bin_bcast|unary_op_kernel`)

// ask finds what each call launched, and the rows of those.
func (b *builder) ask() {
	kinds := map[int32]bool{} // by kernel: it is elementwise
	for d := range b.devices {
		clear(kinds)
		for _, i := range b.devices[d] {
			a := &b.t.Activities[i]
			if a.Op == timeline.None {
				continue
			}
			op, row := b.t.Outermost(a.Op), b.rowOf(a, kinds)
			known, ok := b.asks[op]
			if !ok {
				known.begun, known.row = a.Start, row
				known.graph = strings.Contains(b.t.Rec.Meta.Functions[b.t.Ops[op].Func].Base, "GraphLaunch")
			} else {
				known.row = NoRow
			}
			if known.graph {
				known.row = NoRow
			}
			known.begun = min(known.begun, a.Start)
			known.kernel = known.kernel || a.Kind == timeline.Kernel
			known.own += a.End - a.Start
			if a.Kind == timeline.Copy {
				known.bytes += b.t.Rec.Events[a.Event].Args[2]
			}
			b.asks[op] = known
		}
	}
	for i := range b.t.Threads {
		b.rowsOf(b.callsOf(&b.t.Threads[i]))
	}
	for r := range b.g.Rows {
		if t := &b.g.Rows[r]; t.Count > 0 {
			slices.Sort(t.durations)
			t.Floor, t.durations = quantile.Of(t.durations, floorPercent), nil
		}
	}
}

// rowOf returns which rows an activity can be in.
func (b *builder) rowOf(a *timeline.Activity, kinds map[int32]bool) Row {
	switch a.Kind {
	case timeline.Copy:
		e := &b.t.Rec.Events[a.Event]
		if e.Args[2] > smallCopy {
			return NoRow
		}
		switch partOf(copyName(e)) {
		case ToDevice:
			return Uploads
		case ToHost:
			return Downloads
		}
	case timeline.Kernel:
		k := b.t.KernelIndex(a)
		if k == timeline.None || a.End-a.Start > smallKernel {
			return NoRow
		}
		is, ok := kinds[k]
		if !ok {
			is = elementwise.MatchString(b.t.Kernel(a).Name)
			kinds[k] = is
		}
		if is {
			return Elementwise
		}
	}
	return NoRow
}

// rowsOf finds the rows of a thread with these calls: those between which it launches nothing else, computes for no
// longer than mostBetween, and waits for nothing but the copies of the row.
func (b *builder) rowsOf(calls []int32) {
	var row []int32
	of, end, waited := NoRow, uint64(0), uint64(0) // of the last launch, and since then: ns
	flush := func() {
		if len(row) >= leastRow {
			b.addRow(row, of)
		}
		row = row[:0]
	}
	for _, i := range calls {
		o := &b.t.Ops[i]
		a, launches := b.asks[i]
		if s, waits := b.syncs[i]; waits && !launches && len(row) > 0 {
			waited += o.Dur
			if of == Elementwise || waited > mostAwaited || !b.isFor(&b.t.Syncs[s], row[len(row)-1]) {
				flush()
			}
			continue
		}
		if !launches {
			continue
		}
		if a.row != of || o.Start-min(o.Start, end+waited) > mostBetween {
			flush()
		}
		if of = a.row; of != NoRow {
			row = append(row, i)
		}
		end, waited = o.End(), 0
	}
	flush()
}

// isFor reports whether a synchronization is for what a call launched, as far as is known.
func (b *builder) isFor(s *timeline.Sync, call int32) bool {
	if s.Activity == noNode {
		return true
	}
	op := b.t.Activities[s.Activity].Op
	return op != timeline.None && b.t.Outermost(op) == call
}

func (b *builder) addRow(calls []int32, of Row) {
	t := &b.g.Rows[of]
	t.Rows++
	for n, i := range calls {
		a := b.asks[i]
		t.Count, t.Own, t.Bytes, t.durations = t.Count+1, t.Own+a.own, t.Bytes+a.bytes, append(t.durations, a.own)
		a.inRow = true
		if a.last = n == len(calls)-1; !a.last {
			a.next = calls[n+1]
		}
		b.asks[i] = a
	}
}

// rowSpan is a time in which a thread goes from one launch of a row to the end of the next.
type rowSpan struct {
	timeline.Span
	row Row
}

// rows returns these times of a thread. A wait after the last of a row is for what one in place of all does.
func (w *writer) rows(calls []int32) []rowSpan {
	var out []rowSpan
	for _, i := range calls {
		a := w.b.asks[i]
		if !a.inRow || a.last {
			continue
		}
		if span := (timeline.Span{From: w.b.t.Ops[i].End(), To: w.b.t.Ops[a.next].End()}); span.To > span.From {
			out = append(out, rowSpan{span, a.row})
		}
	}
	return out
}

// row returns the row that what is written now belongs to.
func (w *writer) row() Row {
	for len(w.rowSpans) > 0 && w.rowSpans[0].To <= w.pos {
		w.rowSpans = w.rowSpans[1:]
	}
	if len(w.rowSpans) > 0 && w.rowSpans[0].From <= w.pos {
		return w.rowSpans[0].row
	}
	return NoRow
}
