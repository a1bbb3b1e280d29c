package profile_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/profile"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// BenchmarkSwitches measures what a switch of a target costs more in a storm: two threads that
// do nothing but hand a byte to and fro, with the events of the CPU clock alone, and with those
// of switches as well, far beyond the budget. The figures are ns of CPU time; of all rounds
// those count that were disturbed least (the tenth part with the lowest figures).
func BenchmarkSwitches(b *testing.B) {
	needs.Root(b, "it samples other processes")
	v := pingpong(b)
	p := v.describe(b)
	cases := []struct {
		name   string
		opts   profile.Options
		source *following
		ns     []float64
	}{
		{name: "thread-99Hz", opts: profile.PerThread(profile.Options{Hz: 99})},
		{
			name: "thread-99Hz-and-switches",
			opts: profile.PerThread(profile.Options{Hz: 99, Switches: profile.DefaultSwitch}),
		},
		{name: "99Hz", opts: profile.Options{Hz: 99}},
		{name: "99Hz-and-switches", opts: profile.Options{Hz: 99, Switches: profile.DefaultSwitch}},
		{name: "2000Hz", opts: profile.Options{Hz: 2000}},
	}
	for i := range cases {
		cases[i].opts.OwnOnly = true
		cases[i].source = newSource(b, cases[i].opts)
	}
	var off []float64
	v.round(b)
	for b.Loop() {
		off = append(off, v.round(b))
		for i := range cases {
			cases[i].ns = append(cases[i].ns, v.followed(b, cases[i].source, p))
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(lowest(off), "ns/switch-off")
	for _, c := range cases {
		b.ReportMetric(lowest(c.ns)-lowest(off), "ns-added/"+c.name)
	}
}

// BenchmarkStorm measures the same once a storm is known to be one: with a budget, and without.
func BenchmarkStorm(b *testing.B) {
	needs.Root(b, "it samples other processes")
	v := pingpong(b)
	p := v.describe(b)
	var off []float64
	with := map[float64][]float64{0: nil, 0.02: nil}
	for b.Loop() {
		off = append(off, v.round(b))
		for budget := range with {
			s := newSource(b, profile.Options{Switches: profile.DefaultSwitch, Budget: budget, OwnOnly: true})
			must.NoError(b, s.Follow(p))
			for until := time.Now().Add(2 * time.Second); time.Now().Before(until); {
				v.round(b)
			}
			for range 60 { // several slices with their pauses: the mean is what it takes
				with[budget] = append(with[budget], v.round(b))
			}
			s.Forget(p)
			_ = s.Close()
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(mean(off), "ns/switch-off")
	for budget, ns := range with {
		b.ReportMetric(mean(ns)-mean(off), fmt.Sprintf("ns-added/budget-%g%%", 100*budget))
	}
}

func mean(all []float64) float64 {
	sum := 0.0
	for _, x := range all {
		sum += x
	}
	return sum / float64(len(all))
}

// pingpong starts two threads that wait for each other, on the last CPU: the first ones have
// most of the machine's interrupts.
func pingpong(b testing.TB) *victim {
	b.Helper()
	const waiters = "../../../testdata/waiters"
	if out, err := exec.Command("make", "-s", "-C", waiters, "CC=gcc").CombinedOutput(); err != nil {
		b.Skipf("make: %v\n%s", err, out)
	}
	v := start(b, filepath.Join("../../../build/waiters", "pingpong"), strconv.Itoa(runtime.NumCPU()-1))
	v.Line()
	return v
}

func (v *victim) describe(b *testing.B) *proc.Process {
	b.Helper()
	p, err := proc.Describe(int(v.pid()))
	must.NoError(b, err)
	b.Cleanup(func() { _ = p.Close() })
	return p
}

// roundTrips is long enough for the samples that the budget allows to weigh little.
const roundTrips = 40_000

// round returns the ns per switch of some round trips.
func (v *victim) round(b *testing.B) float64 {
	b.Helper()
	fmt.Fprintf(v.In, "go %d\n", roundTrips)
	ns, err := strconv.ParseFloat(v.Line(), 64)
	must.NoError(b, err)
	return ns
}

func (v *victim) followed(b *testing.B, s *following, p *proc.Process) float64 {
	b.Helper()
	must.NoError(b, s.Follow(p))
	defer s.Forget(p)
	ns := v.round(b)
	s.Feed(0, func([]event.Event) {})
	return ns
}

// lowest returns the first decile.
func lowest(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/10]
}
