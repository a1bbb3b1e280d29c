package gap

// Alone is the window of the main thread of a target whose GPU was not seen: Walk.Steps[First:Last] cover
// all of it.
type Alone struct {
	First, Last int32
}

// main walks the main thread where no device was seen.
func (w *walker) main() {
	if !w.unobservable {
		return
	}
	pid := w.t.Rec.Meta.Target
	th := w.known(key{pid, pid})
	if th == nil || w.t.From >= w.t.To {
		return
	}
	w.floor, w.chain, w.first = Seen, w.chain[:0], len(w.out.Steps)
	first := int32(len(w.out.Steps))
	w.explain(th, w.t.From, w.t.To)
	w.out.Main = &Alone{First: first, Last: int32(len(w.out.Steps))}
}

// merge puts together steps of a gap that touch and say the same.
func (w *Walk) merge() {
	kept := w.Steps[:0]
	squeeze := func(first, last int32) (int32, int32) {
		begin := len(kept)
		for i := first; i < last; i++ {
			if n := len(kept); n > begin && kept[n-1].same(&w.Steps[i]) {
				kept[n-1].To = w.Steps[i].To
				continue
			}
			kept = append(kept, w.Steps[i])
		}
		return int32(begin), int32(len(kept))
	}
	for i := range w.Gaps {
		g := &w.Gaps[i]
		g.First, g.Last = squeeze(g.First, g.Last)
	}
	if w.Main != nil {
		w.Main.First, w.Main.Last = squeeze(w.Main.First, w.Main.Last)
	}
	w.Steps = kept
}

// same reports whether a step that follows on s differs from it in its times only.
func (s *Step) same(next *Step) bool {
	return s.Cause == next.Cause && s.Op == next.Op && s.TID == next.TID && s.Stack == next.Stack &&
		s.Wait == next.Wait && s.Inner == next.Inner &&
		s.Sure == next.Sure && s.PID == next.PID && s.WaiterTID == next.WaiterTID && s.WaiterPID == next.WaiterPID &&
		s.To == next.From
}
