package correlate

// Bounds of what is tried where the two sides of a block do not fit.
const (
	maxBand  = 96      // how far apart the two sides may drift
	maxCells = 4 << 20 // of the table of an alignment
	margin   = 12      // more than the difference in length
)

// fits reports whether a work can be a call's.
func (p *Problem) fits(call, work int32) bool {
	c, w := &p.Calls[call], &p.Works[work]
	return c.Shape == w.Shape && w.Start+slack >= c.Time
}

// align links the works of a block.
func (p *Problem) align(b block, l loss, links []Link) {
	n, m := len(b.calls), len(b.works)
	if n == 0 || m == 0 {
		return
	}
	switch {
	case b.head && b.tail:
		if d, ok := p.onlyShift(b); ok {
			p.shifted(b, d, l, links)
		}
	case n == m && p.same(b, 0, n):
		p.equal(b, l, links)
	case b.head && m > n && p.same(b, m-n, n):
		p.shifted(b, m-n, l, links)
	case b.tail && n > m && p.same(b, 0, m):
		p.shifted(b, 0, l, links)
	default:
		p.forced(b, l, links)
	}
}

// same reports whether works[d:] fit the first n calls one by one.
func (p *Problem) same(b block, d, n int) bool {
	return p.sameUntil(b, d, 0, n) == n
}

// equal links two sides that fit one by one. That is wrong only where a call and a work are missing
// and everything between the two has one shape, so that a shift does not show.
func (p *Problem) equal(b block, l loss, links []Link) {
	for i, r := range p.runs(b.calls) {
		p.link(links, b.calls[i], b.works[i], 1-float64(r)*float64(r)*l.calls*l.works)
	}
}

// shifted links works[d:] with calls, of which one side has more at an edge of what was recorded. A single
// missing call or work can then stand for one at the edge.
func (p *Problem) shifted(b block, d int, l loss, links []Link) {
	for i, r := range p.runs(b.calls) {
		if j := i + d; j >= 0 && j < len(b.works) {
			p.link(links, b.calls[i], b.works[j], 1-float64(r)*(l.calls+l.works))
		}
	}
}

func (p *Problem) link(links []Link, call, work int32, confidence float64) {
	if confidence >= safe {
		links[work] = Link{call, float32(min(1, confidence))}
	}
}

// runs returns for each call how many calls around it have its shape.
func (p *Problem) runs(calls []int32) []int {
	out := make([]int, len(calls))
	for i := 0; i < len(calls); {
		j := i
		for j < len(calls) && p.Calls[calls[j]].Shape == p.Calls[calls[i]].Shape {
			j++
		}
		for k := i; k < j; k++ {
			out[k] = j - i
		}
		i = j
	}
	return out
}

// onlyShift finds the one shift at which two sides fit where both ends are open; false where there are several.
func (p *Problem) onlyShift(b block) (shift int, ok bool) {
	n, m := len(b.calls), len(b.works)
	for d, steps := -n+1, 0; d < m; d++ {
		lo, hi := max(0, -d), min(n, m-d) // calls[lo:hi] with works[lo+d:hi+d]
		if 2*(hi-lo) < min(n, m) {
			continue
		}
		same := p.sameUntil(b, d, lo, hi)
		if steps += 1 + same - lo; steps > maxCells*8 {
			return 0, false
		}
		if same < hi {
			continue
		}
		if ok {
			return 0, false
		}
		shift, ok = d, true
	}
	return shift, ok
}

// sameUntil returns the first of calls[lo:hi] that does not fit the work at its place + d, hi where all fit.
func (p *Problem) sameUntil(b block, d, lo, hi int) int {
	for i := lo; i < hi; i++ {
		if !p.fits(b.calls[i], b.works[i+d]) {
			return i
		}
	}
	return hi
}

// Of the pairs that every best alignment of two sides has, those are linked that lie in a run of
// pairs next to each other, with shapes that change in it: a lone one can fit by chance.
const (
	leastMatched = 0.92 // of the shorter side, or the two sides have little to do with each other
	leastRun     = 8    // pairs
	leastChanges = 4    // of shape, in the run
)

// forced aligns two sides that do not fit, and links the pairs that every best
// alignment has. A best one leaves out as little as possible.
func (p *Problem) forced(b block, l loss, links []Link) {
	n, m := len(b.calls), len(b.works)
	t, ok := newTable(n, m)
	if !ok {
		return
	}
	t.fill(func(i, j int) bool { return p.fits(b.calls[i], b.works[j]) })
	matched := int(t.of(t.best, n, m))
	if float64(matched) < leastMatched*float64(min(n, m)) {
		return
	}
	l.calls = max(l.calls, float64(m-matched)/float64(m))
	l.works = max(l.works, float64(n-matched)/float64(n))
	calls, works := p.runs(b.calls), p.workRuns(b.works)
	cells := t.forced()
	for from := 0; from < len(cells); {
		to := from + 1
		for to < len(cells) && cells[to].i == cells[to-1].i+1 && cells[to].j == cells[to-1].j+1 {
			to++
		}
		if p.telling(b, cells[from:to]) {
			for _, x := range cells[from:to] {
				r := float64(max(calls[x.i], works[x.j]))
				p.link(links, b.calls[x.i], b.works[x.j], 1-r*r*l.calls*l.works)
			}
		}
		from = to
	}
}

// telling reports whether a run of pairs is long enough, and changes its shape often enough, not to fit by chance.
func (p *Problem) telling(b block, run []cell) bool {
	changes := 0
	for k := 1; k < len(run); k++ {
		if p.Calls[b.calls[run[k].i]].Shape != p.Calls[b.calls[run[k-1].i]].Shape {
			changes++
		}
	}
	return len(run) >= leastRun && changes >= leastChanges
}

func (p *Problem) workRuns(works []int32) []int {
	out := make([]int, len(works))
	for i := 0; i < len(works); {
		j := i
		for j < len(works) && p.Works[works[j]].Shape == p.Works[works[i]].Shape {
			j++
		}
		for k := i; k < j; k++ {
			out[k] = j - i
		}
		i = j
	}
	return out
}
