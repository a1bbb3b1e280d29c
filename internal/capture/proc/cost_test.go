package proc

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// BenchmarkIdle prints what following one quiet process costs: CPU time of the
// watcher per second, as ms and so as tenths of a percent of a core.
func BenchmarkIdle(b *testing.B) {
	for name, o := range map[string]Options{"records": {}, "polled": {PollMappings: true}} {
		b.Run(name, func(b *testing.B) {
			v := newVictim(b)
			w := newWatch(b, o)
			w.add(v.pid)
			before, start := ownCPU(b), time.Now()
			for range b.N {
				time.Sleep(time.Second)
			}
			used := ownCPU(b) - before
			b.ReportMetric(used.Seconds()*1000/time.Since(start).Seconds(), "cpu-ms/s")
		})
	}
}

func ownCPU(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	must.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkPrograms prints what the kernel programs cost a process that forks
// 500 children: every fork and exit on the host pays the first, a target's both.
func BenchmarkPrograms(b *testing.B) {
	for name, watched := range map[string]bool{"unwatched": false, "watched": true} {
		b.Run(name, func(b *testing.B) {
			v := newVictim(b)
			w := newWatch(b, Options{})
			if watched {
				w.add(v.pid)
			}
			stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
			if err != nil {
				b.Skipf("no statistics of BPF programs: %v", err)
			}
			defer stats.Close()
			for b.Loop() {
				v.numbers("storm 500")
			}
			for what, program := range map[string]*ebpf.Program{
				"ns/fork": w.kernel.objects.ProcessFork, "ns/exit": w.kernel.objects.ProcessExit,
			} {
				s, err := program.Stats()
				if err != nil || s.RunCount == 0 {
					b.Fatalf("%s: %v %v", what, s, err)
				}
				b.ReportMetric(float64(s.Runtime.Nanoseconds())/float64(s.RunCount), what)
			}
		})
	}
}

// BenchmarkAdd prints what it costs to take up a process: two looks through /proc.
func BenchmarkAdd(b *testing.B) {
	v := newVictim(b)
	for b.Loop() {
		b.StopTimer()
		w := newWatch(b, Options{})
		b.StartTimer()
		w.add(v.pid)
	}
}

// BenchmarkMapping prints what the records cost a process that maps a file
// executable: any process of the host, while there is a target.
func BenchmarkMapping(b *testing.B) {
	for _, on := range []bool{false, true} {
		b.Run(map[bool]string{false: "alone", true: "watched host"}[on], func(b *testing.B) {
			v := newVictim(b)
			if on {
				newWatch(b, Options{}).add(v.pid)
			}
			fd, err := unix.Open(v.library, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			must.NoError(b, err)
			defer unix.Close(fd)
			for b.Loop() {
				memory, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
				must.NoError(b, err)
				_ = unix.Munmap(memory)
			}
		})
	}
}
