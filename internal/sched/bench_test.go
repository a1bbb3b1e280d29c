package sched_test

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/ring"
	"github.com/inferscope/inferscope/internal/sched"
	"github.com/inferscope/inferscope/internal/target"
)

// pair is a running pingpong.
type pair struct {
	b   *testing.B
	pid int
	in  io.Writer
	out *bufio.Scanner
}

func newPair(b *testing.B) *pair {
	b.Helper()
	needRoot(b)
	// The last CPU: the first ones have most of the machine's interrupts.
	cmd := exec.Command(filepath.Join(waiters(b), "pingpong"), strconv.Itoa(runtime.NumCPU()-1))
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	runtime.LockOSThread()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		runtime.UnlockOSThread()
	})
	p := &pair{b: b, pid: cmd.Process.Pid, in: in, out: bufio.NewScanner(out)}
	p.line()
	return p
}

func (p *pair) line() string {
	if !p.out.Scan() {
		p.b.Fatal("the pair says nothing")
	}
	return p.out.Text()
}

// round returns the ns per switch of n round trips.
func (p *pair) round(n int) float64 {
	fmt.Fprintf(p.in, "go %d\n", n)
	ns, err := strconv.ParseFloat(p.line(), 64)
	if err != nil {
		p.b.Fatal(err)
	}
	return ns
}

// BenchmarkSwitch measures what one switch costs more, in rounds that are interleaved
// with rounds without the programs: of a process that is followed, of one that is not,
// and of one that is followed beyond the budget. The figures are ns of CPU time; of all
// rounds those count that were disturbed least (the tenth part with the lowest figures).
func BenchmarkSwitch(b *testing.B) {
	for _, c := range []struct {
		name   string
		follow bool
		opts   sched.Options
	}{
		{"others", false, sched.Options{}},
		{"target", true, sched.Options{Budget: 1 << 31}},
		{"target-storm", true, sched.Options{Budget: 1000}},
	} {
		b.Run(c.name, func(b *testing.B) {
			p := newPair(b)
			rings, err := ring.New(ring.Options{Bytes: 64 << 20})
			if err != nil {
				b.Fatal(err)
			}
			defer rings.Close()
			s, err := sched.New(rings, c.opts)
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			if c.follow {
				proc, err := target.Describe(p.pid)
				if err != nil {
					b.Fatal(err)
				}
				defer proc.Close()
				if err := s.Follow(proc); err != nil {
					b.Fatal(err)
				}
			}
			compare(b, p, s, rings)
		})
	}
}

func compare(b *testing.B, p *pair, s *sched.Source, rings *ring.Rings) {
	b.Helper()
	const trips = 2000
	var off, on []float64
	p.round(trips)
	for b.Loop() {
		if err := s.Switch(false); err != nil {
			b.Fatal(err)
		}
		without := p.round(trips)
		if err := s.Switch(true); err != nil {
			b.Fatal(err)
		}
		with := p.round(trips)
		rings.Drain(func([]event.Event) {})
		off, on = append(off, without), append(on, with)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(lowest(off), "ns/switch-off")
	b.ReportMetric(lowest(on), "ns/switch-on")
	b.ReportMetric(lowest(on)-lowest(off), "ns-added/switch")
}

// lowest returns the first decile.
func lowest(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/10]
}

// BenchmarkComplete measures how long the rows of a recording take.
func BenchmarkComplete(b *testing.B) {
	needRoot(b)
	v := behave(b, "stuck")
	w := newWatch(b, sched.Options{}, v.pid)
	for b.Loop() {
		w.source.Complete(now())
	}
}
