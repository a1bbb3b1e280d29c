package summary

import (
	"cmp"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
)

// functions makes the table per function. A row is a function of one library
// under all its version suffixes.
type functions struct {
	rows      []Function
	index     []int32     // event.Func to row
	kinds     []kind      // by event.Func
	durations []durations // of each row: calls that began in the window
	within    map[[2]int32]uint64
	last      [2]int32 // key of within
	lastCount uint64   // what it is short of
}

func newFunctions(table []recording.Function) *functions {
	f := &functions{index: make([]int32, len(table)), kinds: make([]kind, len(table)), within: map[[2]int32]uint64{}}
	place := map[[2]string]int32{}
	for i, fn := range table {
		base := fn.Base
		if base == "" || strings.HasSuffix(base, "*") {
			base = fn.Name // a row for many functions names none of them
		}
		key := [2]string{fn.Library, base}
		row, ok := place[key]
		if !ok {
			row = int32(len(f.rows))
			place[key] = row
			f.rows = append(f.rows, Function{Name: base, Library: fn.Library, Group: fn.Group})
		}
		f.index[i], f.kinds[i] = row, kindOf(&fn, f.rows[row].Name)
		f.rows[row].Timed = f.rows[row].Timed || fn.Timed
		if !slices.Contains(f.rows[row].Names, fn.Name) {
			f.rows[row].Names = append(f.rows[row].Names, fn.Name)
		}
	}
	f.durations = make([]durations, len(f.rows))
	return f
}

// row returns the row of event.Func fn, which the timeline keeps within the table.
func (f *functions) row(fn uint16) *Function { return &f.rows[f.index[fn]] }

// time adds the time of a call, also of one that began before the window.
func (f *functions) time(o *op) {
	o.row.Time += o.to - o.from
	if o.early {
		o.row.Early++
	}
}

// count counts a call that began in the window.
func (f *functions) count(o *op) {
	o.row.Count++
	if o.failed() {
		o.row.Errors++
	} else {
		o.row.Bytes += o.call.Bytes
	}
	switch {
	case o.Timed:
		f.durations[f.index[o.Func]].add(o.Dur)
	case o.row.Timed:
		o.row.Untimed++
	}
}

// inside counts a call of inner somewhere in a call of outer. Neighbours are often of the same two.
func (f *functions) inside(inner, outer uint16) {
	k := [2]int32{f.index[inner], f.index[outer]}
	if k != f.last {
		f.flush()
		f.last = k
	}
	f.lastCount++
}

func (f *functions) flush() {
	if f.lastCount > 0 {
		f.within[f.last] += f.lastCount
	}
	f.lastCount = 0
}

func (f *functions) result(w Window, windows *Windows) []Function {
	out := []Function{}
	for i := range f.rows {
		r := f.rows[i]
		if r.Count == 0 && r.Early == 0 {
			continue
		}
		d := &f.durations[i]
		r.P50, r.P99, r.Max = d.percentile(50), d.percentile(99), d.percentile(100)
		r.Timed = r.Timed || d.count() > 0
		r.Share = share(r.Time, w.Observed)
		if windows != nil && r.Group == string(cuda.Launch) {
			r.Seen, r.Share = windows.Time, share(r.Time, windows.Time)
		}
		if len(r.Names) == 1 && r.Names[0] == r.Name {
			r.Names = nil
		}
		out = append(out, r)
	}
	slices.SortStableFunc(out, func(x, y Function) int {
		return cmp.Or(cmp.Compare(y.Time, x.Time), cmp.Compare(y.Count, x.Count), cmp.Compare(x.Name, y.Name))
	})
	return out
}

// insideResult gives for each function that was called by others the caller that called it most.
func (f *functions) insideResult() []inside {
	f.flush()
	totals, most := map[int32]uint64{}, map[int32][2]int32{}
	for pair, n := range f.within {
		inner := pair[0]
		totals[inner] += n
		best, ok := most[inner]
		// The lower index decides between equals, because the order of a map must not.
		if !ok || n > f.within[best] || n == f.within[best] && pair[1] < best[1] {
			most[inner] = pair
		}
	}
	out := []inside{}
	for inner, n := range totals {
		r := &f.rows[inner]
		out = append(out, inside{Name: r.Name, Library: r.Library, Count: n, In: f.rows[most[inner][1]].Name})
	}
	slices.SortFunc(out, func(x, y inside) int {
		return cmp.Or(cmp.Compare(y.Count, x.Count), cmp.Compare(x.Name, y.Name), cmp.Compare(x.Library, y.Library))
	})
	return out
}
