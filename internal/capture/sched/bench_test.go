package sched_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/ring"
	"github.com/inferscope/inferscope/internal/capture/sched"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// pair is a running pingpong.
type pair struct {
	*child.Child
	b *testing.B
}

// newPair starts a pair on the last CPU: the first ones have most of the machine's interrupts.
func newPair(b *testing.B) *pair {
	b.Helper()
	return newPairOn(b, runtime.NumCPU()-1)
}

func newPairOn(b *testing.B, cpu int) *pair {
	b.Helper()
	needs.Root(b, "it loads BPF programs")
	cmd := exec.Command(filepath.Join(waiters(b), "pingpong"), strconv.Itoa(cpu))
	p := &pair{Child: child.Start(b, cmd), b: b}
	p.Line()
	return p
}

// trips are the round trips between two drains: at 100,000 switches a second the daemon empties
// lanes and rings every 10 ms, after a thousand events.
const trips = 450

// round returns the ns per switch of trips round trips.
func (p *pair) round() float64 {
	fmt.Fprintf(p.In, "go %d\n", trips)
	ns, err := strconv.ParseFloat(p.Line(), 64)
	must.NoError(p.b, err)
	return ns
}

// cases are what benchmarks compare: a process that is not followed, one that is, and
// one that is followed beyond the budget.
var cases = []struct {
	name   string
	follow bool
	opts   sched.Options
}{
	{"others", false, sched.Options{}},
	{"target", true, sched.Options{Budget: 1 << 31}},
	{"target-storm", true, sched.Options{Budget: 1000}},
}

// BenchmarkSwitch measures what one switch and one wake-up cost more, in rounds that are
// interleaved with rounds without programs and with two empty ones at the same hooks: less
// is not to be had. The figures are ns of CPU time; of all rounds those count that were
// disturbed least (the tenth part with the lowest figures).
func BenchmarkSwitch(b *testing.B) {
	for _, c := range cases {
		b.Run(c.name, func(b *testing.B) {
			p := newPair(b)
			s, rings := benched(b, p, c.follow, c.opts)
			compare(b, p, s, rings)
		})
	}
}

// BenchmarkPrograms measures how long each program runs by the kernel's own account
// (BPF_ENABLE_STATS), which a busy machine disturbs little; what an empty program takes by the
// same account is taken off.
func BenchmarkPrograms(b *testing.B) {
	for _, c := range cases {
		b.Run(c.name, func(b *testing.B) {
			p := newPair(b)
			s, rings := benched(b, p, c.follow, c.opts)
			stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
			if err != nil {
				b.Skip("needs statistics of programs: ", err)
			}
			defer stats.Close()
			floor := emptyPrograms(b)
			defer attachAll(b, floor)()
			for b.Loop() {
				p.round()
				rings.Drain(func([]event.Event) {})
			}
			b.ReportMetric(0, "ns/op")
			atSwitch, atWaking := sched.Programs(s)
			b.ReportMetric(perRun(b, atSwitch)-perRun(b, floor["sched_switch"]), "ns/sched_switch")
			b.ReportMetric(perRun(b, atWaking)-perRun(b, floor["sched_waking"]), "ns/sched_waking")
		})
	}
}

// BenchmarkTwoCPUs is BenchmarkPrograms with a followed pair on each of the last two CPUs: what
// the programs on one CPU write is in the way of those on the other.
func BenchmarkTwoCPUs(b *testing.B) {
	if runtime.NumCPU() < 2 {
		b.Skip("needs two CPUs")
	}
	one, other := newPair(b), newPairOn(b, runtime.NumCPU()-2)
	s, rings := benched(b, one, true, sched.Options{Budget: 1 << 31})
	followPair(b, s, other)
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		b.Skip("needs statistics of programs: ", err)
	}
	defer stats.Close()
	for b.Loop() {
		var both sync.WaitGroup
		both.Go(func() { one.round() })
		other.round()
		both.Wait()
		rings.Drain(func([]event.Event) {})
	}
	b.ReportMetric(0, "ns/op")
	atSwitch, atWaking := sched.Programs(s)
	b.ReportMetric(perRun(b, atSwitch), "ns/sched_switch")
	b.ReportMetric(perRun(b, atWaking), "ns/sched_waking")
}

// benched returns a source for a pair, which it follows or not.
func benched(b *testing.B, p *pair, follow bool, opts sched.Options) (*sched.Source, *ring.Rings) {
	b.Helper()
	rings, err := ring.New(ring.Options{Bytes: 64 << 20})
	must.NoError(b, err)
	b.Cleanup(func() { _ = rings.Close() })
	s, err := sched.New(rings, opts)
	must.NoError(b, err)
	b.Cleanup(func() { _ = s.Close() })
	if follow {
		followPair(b, s, p)
	}
	return s, rings
}

func followPair(b *testing.B, s *sched.Source, p *pair) {
	b.Helper()
	process, err := proc.Describe(p.PID)
	must.NoError(b, err)
	b.Cleanup(func() { _ = process.Close() })
	must.NoError(b, s.Follow(process))
}

// emptyPrograms returns programs that do nothing, by the hook that they are for.
func emptyPrograms(b *testing.B) map[string]*ebpf.Program {
	b.Helper()
	out := map[string]*ebpf.Program{}
	for _, hook := range []string{"sched_switch", "sched_waking"} {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: "empty", Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp, AttachTo: hook, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
		})
		must.NoError(b, err)
		b.Cleanup(func() { _ = p.Close() })
		out[hook] = p
	}
	return out
}

// attachAll attaches programs, and returns what detaches them.
func attachAll(b *testing.B, all map[string]*ebpf.Program) (detach func()) {
	b.Helper()
	var links []link.Link
	for _, p := range all {
		l, err := link.AttachTracing(link.TracingOptions{Program: p})
		must.NoError(b, err)
		links = append(links, l)
	}
	return func() {
		for _, l := range links {
			_ = l.Close()
		}
	}
}

// perRun returns the mean time of a run so far, in ns.
func perRun(b *testing.B, p *ebpf.Program) float64 {
	b.Helper()
	s, err := p.Stats()
	if err != nil || s.RunCount == 0 {
		b.Fatalf("%d runs, %v", s.RunCount, err)
	}
	return float64(s.Runtime) / float64(s.RunCount)
}

func compare(b *testing.B, p *pair, s *sched.Source, rings *ring.Rings) {
	b.Helper()
	empty := emptyPrograms(b)
	var off, floor, on []float64
	p.round()
	for b.Loop() {
		must.NoError(b, s.Switch(false))
		off = append(off, p.round())
		detach := attachAll(b, empty)
		floor = append(floor, p.round())
		detach()
		must.NoError(b, s.Switch(true))
		on = append(on, p.round())
		rings.Drain(func([]event.Event) {})
	}
	added, least := lowest(on)-lowest(off), lowest(floor)-lowest(off)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(lowest(off), "ns/switch-off")
	b.ReportMetric(added, "ns-added/switch")
	b.ReportMetric(least, "ns-added/empty")
	b.ReportMetric(added/least, "x-empty")
}

// lowest returns the first decile.
func lowest(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/10]
}

// BenchmarkComplete measures how long the rows of a recording take.
func BenchmarkComplete(b *testing.B) {
	needs.Root(b, "it loads BPF programs")
	v := behave(b, "stuck")
	w := newWatch(b, sched.Options{}, v.pid)
	for b.Loop() {
		w.source.Complete(now())
	}
}
