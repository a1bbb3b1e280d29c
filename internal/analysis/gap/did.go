package gap

// Did returns what a thread did in [from, to), in steps that touch each other and cover it, by the rules that explain
// gaps. It takes O(n) for n events of the threads that it waited for; one goroutine may call it at a time.
func (w *Walk) Did(pid, tid uint32, from, to uint64) []Step {
	if w.by == nil {
		return nil // made by hand
	}
	x := *w.by
	from, to = max(from, x.t.From), min(to, x.t.To)
	th := x.known(key{pid, tid})
	if th == nil || from >= to {
		return nil
	}
	x.out, x.attribution, x.chain, x.floor, x.first = &Walk{t: w.t}, newAttributor(), nil, Seen, 0
	x.explain(th, from, to)
	x.attribution.resolve(&x)
	return x.out.Steps
}
