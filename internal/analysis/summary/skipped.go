package summary

// skipped adds the calls that were so frequent that they were only counted. Which of them have an event is
// chance, so that those tell how long the others took, and how much they allocated.
func (a *analysis) skipped(rows []threadRow) {
	byThread := map[[2]uint32]*threadRow{}
	calls := map[uint16]uint64{}
	for _, i := range a.t.Skipped {
		e := &a.t.Rec.Events[i]
		outer, inner := a.t.SkippedCalls(i)
		calls[e.Func] += outer
		a.ops += outer
		a.inner += inner
		if len(byThread) == 0 {
			for k := range rows {
				byThread[[2]uint32{rows[k].PID, rows[k].TID}] = &rows[k]
			}
		}
		if row := byThread[[2]uint32{e.PID, e.TID}]; row != nil {
			row.Count += outer
			a.perProc[row.process] += outer
			row.Time += outer * a.functions.row(e.Func).mean()
		}
	}
	for fn, n := range calls {
		row := a.functions.row(fn)
		mean := row.mean()
		switch a.functions.kinds[fn] {
		case allocKind:
			a.memory.skip(memoryKind(row.Name), n, mean)
		case freeKind:
			a.memory.skip("", n, mean)
		}
		row.Time += n * mean
		row.Bytes += uint64(float64(row.Bytes) / float64(max(1, row.Count)) * float64(n))
		row.Count += n
		row.Skipped += n
	}
}

// mean is how long a call that has an event took; of those of the window, which is where most of them are.
func (r *Function) mean() uint64 {
	if n := r.Count + r.Early - r.Skipped - r.Untimed; n > 0 && n <= r.Count+r.Early {
		return r.Time / n
	}
	return 0
}

// memorySkip is allocations of one kind, or frees, that were only counted.
type memorySkip struct {
	calls, mean uint64
}

func (m *memory) skip(kind string, calls, mean uint64) {
	if m.skips == nil {
		m.skips = map[string]memorySkip{}
	}
	s := m.skips[kind]
	if all := s.calls + calls; all > 0 {
		s.mean = (s.mean*s.calls + mean*calls) / all
	}
	s.calls += calls
	m.skips[kind] = s
}

// estimate scales a result by what was only counted, and takes back what cannot be known then.
func (m *memory) estimate(out *Memory) {
	if len(m.skips) == 0 {
		return
	}
	for i := range out.Kinds {
		k := &out.Kinds[i]
		s := m.skips[k.Kind]
		k.Bytes += uint64(float64(k.Bytes) / float64(max(1, k.Count)) * float64(s.calls))
		k.Time += s.calls * s.mean
		k.Count += s.calls
		k.Kept = 0
		out.Skipped += s.calls
	}
	frees := m.skips[""]
	out.Frees += frees.calls
	out.FreeTime += frees.calls * frees.mean
	out.Skipped += frees.calls
	out.Net, out.Unmatched, out.Freed = 0, 0, 0
}
