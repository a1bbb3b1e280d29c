//go:build amd64 || arm64

package inject

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// BenchmarkStop prints for how long a thread is stopped, and for how long it is kept
// from its own work, in an injection. go test -bench Stop -benchtime 100x
func BenchmarkStop(b *testing.B) {
	for _, again := range []bool{false, true} {
		for _, args := range [][]string{
			{"--pause", "200"}, {}, {"--threads", "8"}, {"--pause", "200", "--seccomp", "log"},
		} {
			b.Run(fmt.Sprintf("%v again=%v", args, again), func(b *testing.B) { benchmarkStop(b, again, args) })
		}
	}
}

func benchmarkStop(b *testing.B, again bool, args []string) {
	in, im := newInjector(b), testImage(b)
	v := start(b, args...)
	if !again {
		im.StartOffset = 0 // every time a new copy
	}
	var stopped, held []time.Duration
	for b.Loop() {
		r, h := load(b, in, v, im)
		stopped, held = append(stopped, r.Stopped), append(held, time.Duration(h.Left-r.At))
	}
	v.unharmed()
	for name, all := range map[string][]time.Duration{"stopped": stopped, "held": held} {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Nanoseconds())/1e3, "µs-"+name+"-p50")
		b.ReportMetric(float64(all[len(all)-1].Nanoseconds())/1e3, "µs-"+name+"-max")
	}
}

// BenchmarkSteps prints the median time of each step of the two stops.
func BenchmarkSteps(b *testing.B) {
	in, im := newInjector(b), testImage(b)
	v := start(b, "--pause", "200")
	var names []string
	times := map[string][]float64{}
	for b.Loop() {
		r, _ := load(b, in, v, im)
		for i, s := range r.Steps {
			name := fmt.Sprintf("%2d %s", i, s.Name)
			if i == 0 {
				continue
			}
			if _, ok := times[name]; !ok {
				names = append(names, name)
			}
			times[name] = append(times[name], float64(s.At-r.Steps[i-1].At)/1e3)
		}
	}
	for _, name := range names {
		all := times[name]
		slices.Sort(all)
		b.Logf("%8.1f µs until %q", all[len(all)/2], name)
	}
}
