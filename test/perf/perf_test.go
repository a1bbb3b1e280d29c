// Package perf holds the samples of the real daemon against those that the kernel's
// own profiler, perf, takes of the same thread at the same time, and against what the
// thread is known to do.
package perf

import (
	"cmp"
	"encoding/json"
	"io"
	"maps"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
	"github.com/inferscope/inferscope/test/watch"
)

const (
	window = 8 * time.Second
	hz     = "499"

	// sigmas is how many standard deviations two shares may be apart: one comparison in 16,000 is by chance.
	sigmas = 4
	// worthComparing is the share from which on a function is compared: below it there are too few
	// samples for a binomial distribution to look like a normal one.
	worthComparing = 0.01
	// minSamples is how many are needed at least, of the 4,000 there are on a quiet machine.
	minSamples = 500
)

func TestNativeShares(t *testing.T) {
	v := start(t, compile(t))
	samples, theirs, _ := both(t, v, "-g")
	ours := nativeStacks(samples)
	compare(t, leaves(ours), "perf's", leaves(theirs))
	known := exactly(map[string]float64{"half": 5, "three_tenths": 3, "two_tenths": 2})
	compare(t, leaves(ours).among(known), "known", known)

	// Whole stacks: who called, by its frame pointers and by our unwinder.
	calls := exactly(map[string]float64{})
	for function, share := range known.count {
		calls.count["often > "+function], calls.count["rarely > "+function] = 7*share, 3*share
	}
	compare(t, paths(ours).among(calls), "perf's", paths(theirs).among(calls))
	compare(t, paths(ours).among(calls), "known", calls)
}

func TestPythonShares(t *testing.T) {
	python := needs.Tool(t, "python3")
	v := start(t, python, "testdata/shares.py")
	v.accounts = true
	samples, theirs, known := both(t, v)
	compare(t, leaves(nativeStacks(samples)), "perf's", leaves(theirs))
	compare(t, turns(samples, known), "known", known)
}

// shares counts things by name.
type shares struct {
	count   map[string]float64
	samples float64 // counted
	exact   bool    // the counts are known and no samples
}

// exactly are shares that are known.
func exactly(count map[string]float64) shares { return shares{count: count, exact: true} }

func (s *shares) add(name string) {
	s.count[name]++
	s.samples++
}

// among leaves out what other has no name of: the few samples in the kernel, for one that accounts for the program.
func (s shares) among(other shares) shares {
	out := shares{count: map[string]float64{}}
	for name := range other.count {
		out.count[name] = s.count[name]
		out.samples += s.count[name]
	}
	return out
}

func (s *shares) of(name string) float64 {
	total := 0.0
	for _, n := range s.count {
		total += n
	}
	return s.count[name] / total
}

// compare asserts that two shares of each function are those of one distribution, within sigmas.
func compare(t *testing.T, ours shares, name string, others shares) {
	t.Helper()
	if ours.samples < minSamples || !others.exact && others.samples < minSamples {
		t.Errorf("%.0f of our samples and %.0f of %s, want %d of each", ours.samples, others.samples, name, minSamples)
		return
	}
	functions := slices.SortedFunc(maps.Keys(merged(ours.count, others.count)), func(x, y string) int {
		return cmp.Or(cmp.Compare(others.of(y), others.of(x)), cmp.Compare(x, y))
	})
	t.Logf("%-44s %9s %9s %9s", "", "ours", name, "sigmas")
	for _, function := range functions {
		p, q := ours.of(function), others.of(function)
		if max(p, q) < worthComparing {
			continue
		}
		apart := distance(p, q, &ours, &others)
		t.Logf("%-44.44s %8.2f%% %8.2f%% %9.1f", function, 100*p, 100*q, apart)
		if apart > sigmas {
			t.Errorf("%s: %.2f%% of our samples and %.2f%% of %s: %.1f standard deviations apart",
				function, 100*p, 100*q, name, apart)
		}
	}
}

func merged(a, b map[string]float64) map[string]float64 {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

// distance is how far apart two shares are, in standard deviations of their difference.
func distance(p, q float64, a, b *shares) float64 {
	mean, variance := q, 1/a.samples
	if !b.exact {
		mean = (p*a.samples + q*b.samples) / (a.samples + b.samples)
		variance += 1 / b.samples
	}
	return math.Abs(p-q) / math.Sqrt(max(mean*(1-mean), 1/a.samples)*variance)
}

// stack is the names of what a native profiler sees of a sample, leaf first.
type stack []string

// nativeStacks leaves out Python frames. They stand above the interpreter's loop, which is what a native profiler sees.
func nativeStacks(samples []watch.Sample) []stack {
	out := make([]stack, len(samples))
	for i := range samples {
		for _, f := range samples[i].Frames {
			if f.Kind == recording.NativeFrame || f.Kind == recording.KernelFrame {
				out[i] = append(out[i], symbolName(f.Name, f.File))
			}
		}
	}
	return out
}

// leaves counts samples by the function on top.
func leaves(samples []stack) shares {
	s := shares{count: map[string]float64{}}
	for _, frames := range samples {
		if len(frames) == 0 {
			frames = stack{"no native frame"}
		}
		s.add(frames[0])
	}
	return s
}

// paths counts samples of shares.c by caller and function; one without a caller counts as its function.
func paths(samples []stack) shares {
	s := shares{count: map[string]float64{}}
	for _, frames := range samples {
		i := slices.Index(frames, "main")
		switch {
		case i >= 2:
			s.add(frames[i-1] + " > " + frames[i-2])
		case len(frames) > 0:
			s.add(frames[0])
		}
	}
	return s
}

// symbolName makes one name of what has none, which perf and we write differently, and of
// what has two: in glibc, memcpy is memmove.
func symbolName(name, file string) string {
	stub := strings.HasSuffix(name, "@plt") // we give those no name
	if stub || name == "" || name == "[unknown]" || strings.Contains(name, "+0x") {
		return "unnamed code of " + strings.Trim(filepath.Base(file), "()")
	}
	name, _, _ = strings.Cut(name, "@")
	return strings.Replace(name, "__memcpy_", "__memmove_", 1)
}

// turns counts samples by the function of known that is in their Python stack.
func turns(samples []watch.Sample, known shares) shares {
	s := shares{count: map[string]float64{}}
	for i := range samples {
		for _, f := range samples[i].Frames {
			if _, ok := known.count[f.Name]; ok && f.Kind == recording.PythonFrame {
				s.add(f.Name)
			}
		}
	}
	return s
}

// victim is a program at work.
type victim struct {
	*child.Child
	accounts bool // it answers with what it has spent its time on
}

func compile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shares")
	if out, err := exec.Command(
		"cc", "-O2", "-fno-omit-frame-pointer", "-o", path, "testdata/shares.c",
	).CombinedOutput(); err != nil {
		t.Skipf("needs tool cc: %v\n%s", err, out)
	}
	return path
}

func start(t *testing.T, name string, args ...string) *victim {
	t.Helper()
	watch.NeedRoot(t)
	v := &victim{Child: child.Start(t, exec.Command(name, args...))}
	if line := v.Line(); line != "ready" {
		t.Fatalf("the victim says %q", line)
	}
	return v
}

// spent asks shares.py for its account, and takes off what was spent before.
func (v *victim) spent(t *testing.T, before shares) shares {
	t.Helper()
	if _, err := io.WriteString(v.In, "now\n"); err != nil {
		t.Fatal(err)
	}
	s := exactly(map[string]float64{})
	must.NoError(t, json.Unmarshal([]byte(v.Line()), &s.count))
	for name, ns := range before.count {
		s.count[name] -= ns
	}
	return s
}
