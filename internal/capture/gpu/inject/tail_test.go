//go:build amd64 || arm64

package inject

import (
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// BenchmarkTail prints how long a thread is stopped when somebody else wants the CPUs too: for
// each way in, the median, the 99th of 100 and the longest, and the steps of the longest. What
// the machine itself does to a thread that goes before all others is "machine": how late it wakes
// from a sleep of 1 ms. go test -run - -bench Tail -benchtime 200x
func BenchmarkTail(b *testing.B) {
	for _, crowd := range []struct {
		name  string
		press func(*testing.B)
	}{
		{"quiet", func(*testing.B) {}},
		{"busy-process", busyProcess},
		{"busy-machine", busyMachine},
	} {
		if crowd.name != "busy-process" { // that is about this process, not about the machine
			b.Run(crowd.name+"/machine", func(b *testing.B) {
				crowd.press(b)
				benchmarkMachine(b)
			})
		}
		for _, way := range []struct {
			name string
			make func(testing.TB) loader
		}{
			{"inside", func(tb testing.TB) loader { return newInjector(tb) }},
			{"apart", func(tb testing.TB) loader { return newHelperInjector(tb) }},
		} {
			b.Run(crowd.name+"/"+way.name, func(b *testing.B) {
				in := way.make(b)
				v := start(b, "--pause", "200")
				crowd.press(b)
				benchmarkTail(b, in, v)
			})
		}
	}
}

func benchmarkMachine(b *testing.B) {
	var late []time.Duration
	done := make(chan struct{})
	go onOwnThread(func() {
		defer close(done)
		setRealTimePriority()
		for range 20 * b.N {
			began := time.Now()
			ts := unix.NsecToTimespec(int64(time.Millisecond))
			_, _, _ = unix.RawSyscall(
				unix.SYS_NANOSLEEP,
				uintptr(unsafe.Pointer(&ts)),
				0,
				0,
			) // one that is cut short is not late
			late = append(late, time.Since(began)-time.Millisecond)
		}
	})
	<-done
	slices.Sort(late)
	reportTail(b, late)
}

// reportTail takes sorted times.
func reportTail(b *testing.B, all []time.Duration) {
	for name, i := range map[string]int{"p50": len(all) / 2, "p99": len(all) * 99 / 100, "max": len(all) - 1} {
		b.ReportMetric(float64(all[i].Nanoseconds())/1e3, "µs-"+name)
	}
	first, _ := slices.BinarySearch(all, 2*time.Millisecond)
	b.ReportMetric(float64(len(all)-first), "above-2ms")
}

func benchmarkTail(b *testing.B, in loader, v *victim) {
	im := testImage(b)
	var all []Result
	for b.Loop() {
		r, _ := load(b, in, v, im)
		all = append(all, r)
	}
	v.unharmed()
	slices.SortFunc(all, func(x, y Result) int { return int(x.Stopped - y.Stopped) })
	var stopped []time.Duration
	for _, r := range all {
		stopped = append(stopped, r.Stopped)
	}
	reportTail(b, stopped)
	if len(all) > 10 { // not the benchmark's own first try
		b.Logf("the longest: %v: %s", all[len(all)-1].Stopped, Between(all[len(all)-1].Steps))
	}
}

// busyProcess does what the daemon does while it starts: one thread runs all Go code, and
// goroutines beside ours compute and make garbage.
func busyProcess(b *testing.B) {
	threads := runtime.GOMAXPROCS(1)
	done := make(chan struct{})
	b.Cleanup(func() {
		close(done)
		runtime.GOMAXPROCS(threads)
	})
	for range 3 {
		go func() {
			kept := make([][]byte, 64)
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
					kept[i%len(kept)] = make([]byte, 64<<10)
				}
			}
		}()
	}
}

// busyMachine has two processes for each CPU that want all of it.
func busyMachine(b *testing.B) {
	for range 2 * runtime.NumCPU() {
		cmd := exec.CommandContext(b.Context(), "sh", "-c", "while :; do :; done")
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
}
