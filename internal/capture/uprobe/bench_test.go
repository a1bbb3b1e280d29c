package uprobe_test

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/overhead"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// spinner calls b_call and says what a call costs in CPU time.
type spinner struct {
	*victim
	calls int
}

func (s spinner) nsPerCall() float64 {
	return float64(s.do("spin %d", s.calls).n) / float64(s.calls)
}

func startSpinner(b *testing.B) spinner {
	needRoot(b)
	v := startVictim(b, buildVictim(b))
	if v.elf().Machine.String() != "EM_X86_64" {
		b.Skip("the benchmarked functions are x86-64")
	}
	var cpu unix.CPUSet
	cpu.Set(0)
	must.NoError(b, unix.SchedSetaffinity(int(v.pid()), &cpu))
	return spinner{victim: v, calls: 20000}
}

// emptyProbe attaches a program that does nothing.
func (s spinner) emptyProbe(b *testing.B) func() func() {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Kprobe, AttachType: ebpf.AttachTraceUprobeMulti, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	must.NoError(b, err)
	b.Cleanup(func() { prog.Close() })
	ex, err := link.OpenExecutable(s.lib)
	must.NoError(b, err)
	addr := []uint64{s.function("b_call").Offset}
	return func() func() {
		l, err := ex.UprobeMulti(nil, prog, &link.UprobeMultiOptions{Addresses: addr, PID: s.pid()})
		must.NoError(b, err)
		return func() { l.Close() }
	}
}

// ourProbe attaches ours.
func (s spinner) ourProbe(b *testing.B, a *uprobe.Attacher, w want) func() func() {
	w.name = "b_call"
	file, sites := s.sites(w)
	return func() func() {
		at, err := a.Attach(file, s.pid(), sites)
		must.NoError(b, err)
		return func() { at.Close() }
	}
}

// BenchmarkHotPath: what a probe adds to a call, for each kind of probe, in
// interleaved rounds; x-empty is the median over rounds of the ratio to an empty
// probe on the same instruction. Run with -benchtime=25x: an iteration is a round.
func BenchmarkHotPath(b *testing.B) {
	s := startSpinner(b)
	r := newRings(b, 4<<20)
	a := newAttacher(b, "", r)
	multi := newAttacher(b, uprobe.Multi, r)
	kinds := []struct {
		name   string
		attach func() func()
	}{
		{"empty", s.emptyProbe(b)},
		{"launch", s.ourProbe(b, a, want{cookie: shape(1)})},
		{"params", s.ourProbe(b, a, want{cookie: sel(1, 2, 3, 5)})},
		{"stack", s.ourProbe(b, a, want{cookie: sel(1, 2, 7, 9)})},
		{"timed", s.ourProbe(b, a, want{cookie: sel(1, 2, 3), timed: true})},
		{"timed-multi", s.ourProbe(b, multi, want{cookie: sel(1, 2, 3), timed: true})},
	}
	added := make([][]float64, len(kinds))
	ratio := make([][]float64, len(kinds))
	for b.Loop() {
		for i, k := range kinds {
			before := s.nsPerCall()
			detach := k.attach()
			s.do("spin 1000") // warm
			probed := s.nsPerCall()
			detach()
			r.discard()
			base := (before + s.nsPerCall()) / 2
			added[i] = append(added[i], probed-base)
			ratio[i] = append(ratio[i], (probed-base)/added[0][len(added[0])-1])
		}
	}
	for i, k := range kinds {
		b.ReportMetric(overhead.Median(added[i]), k.name+"-ns")
		if i > 0 {
			b.ReportMetric(overhead.Median(ratio[i]), k.name+"-x-empty")
		}
	}
	b.ReportMetric(0, "ns/op")
	r.noLosses()
}

// discard empties the rings.
func (r *rings) discard() { r.events() }

// many are the 600 functions of b_many, which begins at an offset of the file, one third of them timed.
func many(first uint64) (sites []uprobe.Site) {
	for i := range uint64(600) {
		sites = append(sites, uprobe.Site{Offset: first + 16*i, Cookie: i, Timed: i%3 == 0})
	}
	return sites
}

// BenchmarkAttach600 attaches and detaches 600 functions, one third of them timed.
func BenchmarkAttach600(b *testing.B) {
	s := startSpinner(b)
	sites := many(s.function("b_many").Offset)
	file, err := os.Open(s.lib)
	must.NoError(b, err)
	defer file.Close()
	for _, mode := range append(modes(), "session without a link holder") {
		b.Run(string(mode), func(b *testing.B) {
			options := uprobe.Options{Mode: mode, Maps: newRings(b, 1<<16).maps}
			if slices.Contains(modes(), mode) {
				options.LinkHolder = startLinkHolder(b)
			} else {
				options.Mode = uprobe.Session
			}
			a, err := uprobe.NewAttacher(options)
			must.NoError(b, err)
			defer a.Close()
			var attach, detach time.Duration
			for b.Loop() {
				t0 := time.Now()
				at, err := a.Attach(file, s.pid(), sites)
				t1 := time.Now()
				if err != nil || len(at.Failed()) > 0 {
					b.Fatal(err, at.Failed())
				}
				must.NoError(b, at.Close())
				attach += t1.Sub(t0)
				detach += time.Since(t1)
			}
			b.ReportMetric(float64(attach.Milliseconds())/float64(b.N), "attach-ms")
			b.ReportMetric(float64(detach.Milliseconds())/float64(b.N), "detach-ms")
		})
	}
}
