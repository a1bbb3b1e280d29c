package agent_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// BenchmarkLaunch measures what a launch on the simulated CUDA takes: bare, with the agent between windows, and with
// the agent recording. The simulator's own cost of recording is in the last one.
func BenchmarkLaunch(b *testing.B) {
	const launches = 300000
	for name, mode := range map[string]uint32{"bare": 99, "between windows": modeOff, "recording": modeContinuous} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				script := fmt.Sprintf(
					"launch 1; sync; wait; print begin; launch %d kernel=k_ns1; print end; sync; wait",
					launches,
				)
				p := prepare(b,
					settings{mode: modeContinuous, slots: 1 << 22, options: cudasim.Options{Level: "off"}},
					script)
				if mode != 99 {
					p.load()
					p.state(stateOpen)
					p.mode(mode)
				}
				if mode == modeOff { // leaves by the deadline: nothing synchronizes
					p.state(stateIdle)
				}
				p.proceed()
				p.victim.WaitLine("begin")
				began := time.Now()
				p.victim.WaitLine("end")
				b.ReportMetric(float64(time.Since(began).Nanoseconds())/launches, "ns/launch")
				p.victim.Kill()
				p.leave()
			}
		})
	}
}

// BenchmarkOwnCost measures the agent's own part, CPU time without CUPTI's and the driver's: of a launch (enter and
// exit callback, slot) and of a kernel record (name, slot), beside a system call of this machine.
func BenchmarkOwnCost(b *testing.B) {
	clang, err := exec.LookPath("clang-19")
	if err != nil {
		b.Skipf("needs tool clang-19: %v", err)
	}
	sources, err := filepath.Glob("src/*.c")
	if err != nil {
		b.Fatal(err)
	}
	program := filepath.Join(b.TempDir(), "cost")
	args := append(
		[]string{"-std=gnu11", "-O2", "-fno-builtin", "-mno-red-zone", "-o", program, "testdata/cost.c"},
		sources...)
	if text, err := exec.Command(clang, args...).CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, text)
	}
	for b.Loop() {
		text, err := exec.Command(program).Output()
		if err != nil {
			b.Fatal(err)
		}
		var gettid, launch, kernel float64
		if _, err := fmt.Sscanf(string(text), "gettid %f launch %f kernel %f", &gettid, &launch, &kernel); err != nil {
			b.Fatalf("%q: %v", text, err)
		}
		b.ReportMetric(gettid, "ns/gettid")
		b.ReportMetric(launch, "ns/launch")
		b.ReportMetric(kernel, "ns/kernel")
	}
}
