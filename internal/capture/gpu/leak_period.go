package gpu

import "time"

// Of windows that leave memory.
const (
	// freeLeft is what windows may leave before they become rarer, bytes: what CUPTI takes in
	// its first windows and keeps was measured to be less.
	freeLeft = maxLeft / 2
	// lasting is the time in which they would leave the rest, at the pace that thrift allows at
	// any moment. That becomes less and less, so that it never comes to the end.
	lasting = 12 * time.Hour
	// recent is of how many stretches the mean is what a window leaves now.
	recent = 16
)

// leakPeriod returns how far apart windows have to be because of what they leave in the process;
// 0: as they like. What CUPTI does not give back is as much for each window, for ever: on an
// H200 with CUDA graphs and CUPTI 13.0 it was 94 kB of blocks of malloc that nobody frees, and some more
// (test/gpu/memory_check.py). With a window every two seconds such a process would have its 64 MB in minutes.
func (g *leak) leakPeriod() time.Duration {
	if g.onTrial() {
		return maxPeriod
	}
	left := g.left()
	if left < freeLeft || left >= maxLeft {
		return 0
	}
	period := g.each() / float64(maxLeft-left) * float64(lasting)
	return min(max(0, time.Duration(period)), maxPeriod)
}

// each returns the bytes that a stretch, as a rule one window, leaves now.
func (g *leak) each() float64 {
	last := g.block
	if len(last) < recent {
		return g.sum / float64(max(1, g.all))
	}
	sum := 0.0
	for _, v := range last[len(last)-recent:] {
		sum += v
	}
	return sum / recent
}
