package gpu

import (
	"math"
	"slices"
	"time"
)

// span is the time that one window may have cost its process anything, with those before
// and after that it is compared with; all in ns.
type span struct {
	before   uint64 // end of the span before it
	from, to uint64 // subscribe to the end of the way out
	next     uint64 // beginning of the span after it
	held     uint64 // for which a thread of the process itself worked on the way out
	// predicted is what the window is predicted to have cost (load).
	predicted uint64
}

// Of the judgement of a span.
const (
	aftermath  = 100_000_000   // ns for which a window is felt when it has ended
	undrained  = 200_000_000   // ns before the next window: the last calls may not have been read yet
	baseline   = 5_000_000_000 // ns to each side that are looked at, at most
	fewest     = 40            // calls without which a baseline says nothing
	maxSamples = 24            // windows that are remembered
	minSamples = 6             // windows before anything is said
	maxScale   = 10            // measured cost by predicted cost: beyond that a prediction is not scaled
	longestOn  = 3_000_000_000 // ns: a longer span is not compared with calls around it
	// recordTime is what a record of the GPU takes of the process's time, ns. Windows of llama-server took 71 ± 8 ms with
	// 34,657 kernels of graphs and 71 ± 12 ms with 28,557 launched ones, 13 ms of that to enter and leave (H200, CUPTI
	// 13.0, test/gpu/server_cost.py).
	recordTime = 1700
	// longestEntry is what a way in takes of the process's time at most, ns: 33 ms in 213 windows (H200, CUPTI 13.0). A
	// longer one waits for its turn, and the process goes on meanwhile.
	longestEntry = 40_000_000
)

// load is what a window that has ended is predicted to have cost its process, ns.
type load struct {
	fixed    uint64 // whatever its length: the way in, and what a thread of the process spent on the way out
	recorded uint64 // for its records
	length   uint64
}

func (l load) total() uint64 { return l.fixed + l.recorded }

// meter measures what a window costs its process: the time that a process lost in a span
// is the span less what its calls would have taken at the pace around it. One window says
// little, since programs do not get on evenly; the middle of many does, and their spread says
// how well. What a thread of the process itself spent on the way out is measured by the
// agent, and is a lower bound that needs no pace. Until enough windows were compared, the cost is
// predicted from that, from the way in, and from how much was recorded.
type meter struct {
	lost []float64 // ns by window, the latest last; below 0 where the process was faster in it
	held []float64 // ns by window
	// predicted is what the windows of lost were predicted to cost, ns. Windows that were not compared are in the lists
	// below only.
	predicted []float64

	fixed []float64 // ns by window, predicted
	whole []float64 // likewise, with its records
	rates []float64 // likewise, of its records, for each ns that it was open
}

// predict notes what a window that has just ended is predicted to have cost.
func (m *meter) predict(l load) {
	m.fixed = keepLast(m.fixed, float64(l.fixed))
	m.whole = keepLast(m.whole, float64(l.total()))
	m.rates = keepLast(m.rates, float64(l.recorded)/float64(max(1, l.length)))
}

// add judges a span.
func (m *meter) add(s span, p *pace) {
	if s.before == 0 || s.to <= s.from || s.to-s.from > longestOn || s.before > s.from || s.next < s.to {
		return
	}
	m.held = keepLast(m.held, float64(s.held))
	to := s.to + aftermath
	n, length := p.count(s.from, to+binTime)
	before, since := p.count(max(s.before+aftermath, s.from-min(s.from, baseline)), s.from)
	after, until := p.count(to+binTime, min(s.next-min(s.next, undrained), to+baseline))
	if length == 0 || since+until < length/2 || before+after < fewest {
		return
	}
	each := float64(since+until) / float64(before+after)
	m.lost = keepLast(m.lost, float64(length)-float64(n)*each)
	m.predicted = keepLast(m.predicted, float64(s.predicted))
}

func keepLast(list []float64, v float64) []float64 {
	if len(list) >= maxSamples {
		list = slices.Delete(list, 0, 1)
	}
	return append(list, v)
}

// cost is what is known of what a window costs.
type cost struct {
	window time.Duration // of the process's time, for each window so far
	doubt  time.Duration // standard error of window, where it is a measurement
	fixed  time.Duration // for each window, whatever its length,
	rate   float64       // and of its length
	seen   int           // windows that it rests on
	known  bool          // window is a measurement; else it is predicted

	// The worst case that the next window is planned for.
	last     time.Duration // for the last one
	mostRate float64       // rate, or that of the last one, whichever is more
}

// cost returns what a window takes of the process's time. within is how well it must be
// known: its standard error must be less, or a fifth of it.
func (m *meter) cost(within time.Duration) cost {
	predicted, _ := middle(m.whole)
	c := cost{window: time.Duration(predicted), seen: len(m.whole)}
	if c.seen > 0 {
		fixed, _ := middle(m.fixed)
		rate, _ := middle(m.rates)
		c.last = time.Duration(m.whole[c.seen-1])
		c.fixed, c.rate, c.mostRate = time.Duration(fixed), rate, max(rate, m.rates[c.seen-1])
	}
	lost, doubt := middle(m.lost)
	if len(m.lost) < minSamples || doubt > float64(within) && doubt > lost/5 {
		return c
	}
	held, _ := middle(m.held)
	measured := max(held, lost)
	compared, _ := middle(m.predicted)
	c.window, c.doubt, c.seen, c.known = time.Duration(measured), time.Duration(doubt), len(m.lost), true
	if compared < measured/maxScale { // the prediction explains nothing of it
		c.fixed, c.last = c.window, max(c.window, c.last)
		return c
	}
	scale := measured / max(1, compared)
	c.fixed, c.last = time.Duration(scale*float64(c.fixed)), time.Duration(scale*float64(c.last))
	c.rate, c.mostRate = scale*c.rate, scale*c.mostRate
	return c
}

// typical returns what a window of a length takes as a rule.
func (c cost) typical(on time.Duration) time.Duration {
	return c.fixed + time.Duration(c.rate*float64(on))
}

// middle returns the mean of a list without its largest and smallest eighths, and its standard
// error; both 0 without values. A median would not do: a program that makes a call every 50 ms
// has lost a multiple of that in each window.
func middle(list []float64) (mean, doubt float64) {
	n := len(list)
	if n == 0 {
		return 0, 0
	}
	sorted := slices.Sorted(slices.Values(list))
	cut := n / 8
	rest := sorted[cut : n-cut]
	for _, v := range rest {
		mean += v / float64(len(rest))
	}
	// Of a trimmed mean: the deviation of the list with the values that were cut off moved to
	// the outermost ones that were not (Tukey and McLaughlin 1963).
	square, all := 0.0, 0.0
	for i := range sorted {
		all += sorted[min(max(i, cut), n-1-cut)] / float64(n)
	}
	for i := range sorted {
		away := sorted[min(max(i, cut), n-1-cut)] - all
		square += away * away
	}
	deviation := math.Sqrt(square / float64(max(1, n-1)))
	return mean, deviation * math.Sqrt(float64(n)) / float64(len(rest))
}
