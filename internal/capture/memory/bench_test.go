package memory_test

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/capture/uprobe/elffile"
)

// BenchmarkPair is what a call of the allocator, an allocation or a free, costs the program, in ns, and what of it a
// probe with an empty program costs: by the fastest of many short runs, in turns, as others on the machine only make
// them slower.
func BenchmarkPair(b *testing.B) {
	program := build(b)
	w := newWatch(b)
	v := startVictim(b, program)
	fastest := func(best float64) float64 {
		for range 60 {
			ns, err := strconv.ParseFloat(v.ask("loop %d", 1000), 64)
			if err != nil {
				b.Fatal(err)
			}
			best = min(best, ns/2)
		}
		return best
	}
	attachEmpty := emptyProbe(b, filepath.Join(filepath.Dir(program), "libc10.so"), v)
	w.follow(v)
	v.ask("keep 200") // some blocks are sampled and stay
	off := len(w.source.Levels()) - 1
	plain, empty, full := math.Inf(1), math.Inf(1), math.Inf(1)
	for b.Loop() {
		setLevel(b, w, off)
		plain = fastest(plain)
		detach := attachEmpty()
		empty = fastest(empty)
		detach()
		setLevel(b, w, 0)
		v.ask("keep 20")
		full = fastest(full)
		w.drain()
		w.events = nil
	}
	b.ReportMetric(full-plain, "ns/call")
	b.ReportMetric(empty-plain, "ns/call-empty")
}

// emptyProbe returns what puts a program that does nothing where the source has its own; what that returns takes it off.
func emptyProbe(b *testing.B, library string, v *victim) (attach func() (detach func())) {
	b.Helper()
	file, err := os.Open(library)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { file.Close() })
	info, err := file.Stat()
	if err != nil {
		b.Fatal(err)
	}
	image, err := elffile.Open(file, info.Size())
	if err != nil {
		b.Fatal(err)
	}
	found, err := image.Named(func(name string) bool { return strings.Contains(name, "reportMemoryUsageToProfiler") })
	if err != nil || len(found) != 1 {
		b.Fatalf("%d functions, %v", len(found), err)
	}
	mode, err := uprobe.Detect()
	if err != nil || mode == uprobe.Perf {
		b.Skipf("mode %s, %v", mode, err)
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Kprobe, AttachType: ebpf.AttachTraceUprobeMulti, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { program.Close() })
	at := uprobe.Choose(found[0].Code, found[0].Addr, image.Machine)
	sites := []uprobe.Site{{Offset: found[0].Offset + at.Offset}}
	return func() func() {
		a, err := uprobe.AttachProgram(nil, mode, program, file, uint32(v.cmd.Process.Pid), sites)
		if err != nil {
			b.Fatal(err)
		}
		return func() {
			if err := a.Close(); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkPaced is how much slower a program is that allocates and frees 30,000 blocks a second, in percent, at each
// level that counts all the time: the median ratio of the CPU time of runs with probes to that of the run without them
// just before. Others on the machine disturb CPU time less than time.
func BenchmarkPaced(b *testing.B) {
	const (
		rate  = 30_000 // allocations a second
		each  = 300    // allocations of a run, 10 ms
		pairs = 60
	)
	program := build(b)
	w := newWatch(b)
	v := startVictim(b, program)
	run := func(rounds int) float64 {
		ns, err := strconv.ParseFloat(v.ask("pace %d %d", each, rounds), 64)
		if err != nil {
			b.Fatal(err)
		}
		return ns
	}
	const probe = 10_000 // rounds
	best := math.Inf(1)
	for range 30 {
		best = min(best, run(probe))
	}
	rounds := int(1e9 / rate * each / best * probe)
	all := w.source.Levels()
	off := len(all) - 1
	w.follow(v)
	for level, l := range all {
		if level == off || strings.Contains(l.Loses, "totals") {
			continue
		}
		b.Run(l.Name, func(b *testing.B) {
			for b.Loop() {
				ratios := make([]float64, pairs)
				for i := range ratios {
					setLevel(b, w, off)
					plain := run(rounds)
					setLevel(b, w, level)
					ratios[i] = run(rounds) / plain
					w.drain()
					w.events = nil
				}
				slices.Sort(ratios)
				b.ReportMetric((ratios[pairs/2]-1)*100, "%slower")
				b.ReportMetric((ratios[pairs/4]-1)*100, "%slower-p25")
				b.ReportMetric((ratios[pairs*3/4]-1)*100, "%slower-p75")
			}
		})
	}
}

func setLevel(b *testing.B, w *watch, level int) {
	b.Helper()
	if err := w.source.SetLevel(level); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkDriverPair is what an allocation and a free by the driver's calls cost the program together, in ns.
func BenchmarkDriverPair(b *testing.B) {
	w := newWatch(b)
	v := startDriverVictim(b)
	run := func() float64 {
		best := 1e9
		for range 100 {
			ns, err := strconv.ParseFloat(v.ask("loop 1000"), 64)
			if err != nil {
				b.Fatal(err)
			}
			best = min(best, ns)
		}
		return best
	}
	plain := run()
	w.follow(v)
	best := 1e9
	for b.Loop() {
		best = min(best, run())
		w.drain()
		w.events = nil
	}
	b.ReportMetric(best-plain, "ns/pair")
}
