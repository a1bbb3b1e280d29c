// Package torch watches real PyTorch on the CPU with the real daemon: Debian's build
// by default, and with TORCH_PYTHON set (make test-torch) whatever build that
// interpreter has, above all the one from PyPI with all of CUDA's libraries mapped.
package torch

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/test/watch"
)

// What is asked of the samples of a Python thread, and of the daemon.
const (
	withPython = 0.99
	maxMemory  = 200_000_000 // bytes resident, at any time
	maxSumGap  = 0.001       // of the window: how far the states of a thread may miss it
	window     = 10 * time.Second
	hz         = 99
)

// debianPython is the interpreter for which Debian and Ubuntu package PyTorch.
const debianPython = "/usr/bin/python3"

func TestDebiansPyTorch(t *testing.T) {
	watch.NeedRoot(t)
	if out, err := exec.Command(debianPython, "-c", "import torch").CombinedOutput(); err != nil {
		t.Skipf("needs tool python3-torch (scripts/install-deps.sh judges): %v\n%s", err, out)
	}
	check(t, start(t, debianPython, "attention", "convolution", "scripted"), []expected{
		{"attention", "at::_ops::", 0.5}, {"convolution", generated, 0.2}, {"scripted", "at::_ops::", 0.5},
	})
}

func TestTheInterpretersPyTorch(t *testing.T) {
	watch.NeedRoot(t)
	python := os.Getenv("TORCH_PYTHON")
	if python == "" {
		t.Skip("TORCH_PYTHON names no interpreter: make test-torch does, and installs PyTorch from PyPI for it")
	}
	check(t, start(t, python, "attention", "convolution", "scripted", "compiled"), []expected{
		{
			"attention",
			"at::_ops::",
			0.1,
		}, {"convolution", generated, 0.2}, {"scripted", "torch::jit::", 0.05}, {"compiled", "kernel", 0.2},
	})
}

// expected is what some of the samples of a phase must name, and their least share: about a third
// of what was measured, since the rest depends on the libraries for the CPU at hand. In code without
// unwind tables (MKL, oneDNN's generated code) operators above it are not seen.
type expected struct {
	phase, name string
	share       float64
}

// generated is what code in memory without a file is named, oneDNN's convolutions for example.
const generated = "[generated code]"

// loop is testdata/loop.py at work.
type loop struct {
	pid     int
	Version string            `json:"torch"`
	Phases  []string          `json:"phases"`
	Failed  map[string]string `json:"failed"`
}

func start(t *testing.T, python string, phases ...string) *loop {
	t.Helper()
	cmd := exec.Command(python, append([]string{"testdata/loop.py"}, phases...)...)
	c := child.Start(t, cmd)
	line := c.Line()
	l := &loop{pid: c.PID}
	if err := json.Unmarshal([]byte(line), l); err != nil {
		t.Fatalf("loop.py wrote %q: %v", line, err)
	}
	t.Logf("PyTorch %s, phases %v, failed: %v", l.Version, l.Phases, l.Failed)
	return l
}

// check watches a loop and compares what is recorded with what it is known to do.
func check(t *testing.T, l *loop, wanted []expected) {
	d := watch.Start(t, l.pid, "--cpu-sampling-frequency-hz", strconv.Itoa(hz), "--scheduling=true")
	isWhole := func(s *watch.Sample) bool { return s.Origin == event.Whole && s.HasPython() }
	d.Until("the first whole stack", func() bool {
		samples := watch.Samples(d.Recording(l.pid, api.Window{Last: time.Second}), l.pid)
		return slices.ContainsFunc(samples, func(s watch.Sample) bool { return isWhole(&s) })
	})
	t.Logf("first whole stack within %.1f s of the daemon's start", time.Since(d.Began).Seconds())
	rec := d.Recording(l.pid, api.Window{For: window})
	samples := watch.Samples(rec, l.pid)
	checkSamples(t, l, samples, wanted)
	checkStates(t, rec, len(samples))
	checkLosses(t, rec)
	now, peak := d.Memory.Bytes()
	t.Logf("the memory of the daemon and its helper: %.0f MB, at most %.0f MB; CPU %.1f s",
		float64(now)/1e6, float64(peak)/1e6, d.Status().Self.CPU)
	if peak > maxMemory {
		t.Errorf("the daemon had %d bytes resident, which is over %d", peak, maxMemory)
	}
	d.Stop()
}

// checkSamples prints a line for each phase, and asserts what its frames must show.
func checkSamples(t *testing.T, l *loop, samples []watch.Sample, wanted []expected) {
	t.Helper()
	t.Logf("%-12s%9s%9s%9s%11s%9s%12s", "phase", "samples", "Python", "whole", "at::_ops", "at::", "torch::jit")
	row(t, "all", samples)
	if share := watch.Share(samples, (*watch.Sample).HasPython); share < withPython {
		t.Errorf("%.2f%% of the samples have Python frames, want %.0f%%", 100*share, 100*withPython)
	}
	for _, phase := range l.Phases {
		mine := of(samples, phase)
		row(t, phase, mine)
		t.Logf("%-12s  on top: %s", "", strings.Join(topLeaves(mine), ", "))
		if len(mine) < len(samples)/len(l.Phases)/4 {
			t.Errorf("%s has %d of %d samples, but every phase takes the same time", phase, len(mine), len(samples))
		}
	}
	for _, want := range wanted {
		if _, failed := l.Failed[want.phase]; failed {
			continue
		}
		if share := watch.Share(of(samples, want.phase), natively(want.name)); share < want.share {
			t.Errorf("%.1f%% of the samples of %s name %s, want %.0f%%",
				100*share, want.phase, want.name, 100*want.share)
		}
	}
}

// of returns the samples of a phase: those that have its function in their Python stack.
func of(samples []watch.Sample, phase string) []watch.Sample {
	return slices.DeleteFunc(slices.Clone(samples), func(s watch.Sample) bool {
		return !slices.ContainsFunc(s.Frames, func(f recording.Frame) bool {
			return f.Kind == recording.PythonFrame && strings.HasSuffix("."+f.Name, "."+phase)
		})
	})
}

func natively(part string) func(*watch.Sample) bool {
	return func(s *watch.Sample) bool { return s.In(recording.NativeFrame, part) }
}

func row(t *testing.T, name string, samples []watch.Sample) {
	t.Helper()
	share := func(ok func(*watch.Sample) bool) float64 { return 100 * watch.Share(samples, ok) }
	t.Logf("%-12s%9d%8.2f%%%8.1f%%%10.1f%%%8.1f%%%11.1f%%",
		name, len(samples), share((*watch.Sample).HasPython),
		share(func(s *watch.Sample) bool { return s.Origin == event.Whole }), share(natively("at::_ops::")),
		share(natively("at::")), share(natively("torch::jit::")))
}

// topLeaves names the functions that most samples have on top, with their shares.
func topLeaves(samples []watch.Sample) []string {
	count := map[string]int{}
	for i := range samples {
		f := samples[i].Leaf()
		count[fmt.Sprintf("%s [%s]", f.Name, f.File)]++
	}
	names := slices.SortedFunc(maps.Keys(count),
		func(a, b string) int { return cmp.Or(count[b]-count[a], cmp.Compare(a, b)) })
	for i, name := range names {
		names[i] = fmt.Sprintf("%.0f%% %.70s", 100*float64(count[name])/float64(len(samples)), name)
	}
	return names[:min(len(names), 4)]
}

// checkStates asserts that the states of each thread add up to the window, and that the
// first thread has the samples that its running time makes one expect.
func checkStates(t *testing.T, rec *recording.Recording, samples int) {
	t.Helper()
	s := cpu.Summarize(rec)
	found := false
	for _, th := range s.Threads {
		sum := float64(th.Running + th.Runnable + th.Blocked + th.Absent)
		if gap := sum/float64(s.Length) - 1; gap > maxSumGap || gap < -maxSumGap {
			t.Errorf("the states of thread %d (%s) add up to %.0f of %d ns", th.TID, th.Name, sum, s.Length)
		}
		if th.TID != rec.Meta.Target {
			continue
		}
		found = true
		running := time.Duration(th.Running).Seconds()
		t.Logf("the loop ran %.2f of %.2f s and has %d samples: %.1f a second",
			running, time.Duration(s.Length).Seconds(), samples, float64(samples)/running)
		if want := hz * running; float64(samples) < 0.9*want || float64(samples) > 1.1*want {
			t.Errorf("%d samples, want %.0f", samples, want)
		}
	}
	if !found {
		t.Errorf("the loop's thread is not among the %d threads with states", len(s.Threads))
	}
}

// checkLosses asserts that nothing worse than an info was lost.
func checkLosses(t *testing.T, rec *recording.Recording) {
	t.Helper()
	for _, lost := range watch.Doubts(rec) {
		t.Errorf("lost: %+v", lost)
	}
}
