package diff_test

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/report/diff"
	"github.com/inferscope/inferscope/internal/testkit/exporttest"
)

// spread makes the named ranges of a recording longer: by a share, and by noise of a tenth.
func spread(rec *recording.Recording, by float64, seed uint64) *recording.Recording {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range rec.Events {
		if e := &rec.Events[i]; e.Kind == event.Range {
			e.Dur = uint64(float64(e.Dur) * (1 + by) * (0.9 + 0.1*r.Float64()))
		}
	}
	return rec
}

// TestSame holds that two recordings that differ by noise do not differ.
func TestSame(t *testing.T) {
	c := diff.New("a", "b", spread(exporttest.Decode(100), 0, 1), spread(exporttest.Decode(100), 0, 2))
	if c.Latency == nil {
		t.Fatal("no latency")
	}
	if c.Latency.Sure {
		t.Errorf("noise is taken for a change: %+v", *c.Latency)
	}
	if worse, ok := c.Worse(0.05); worse || !ok {
		t.Errorf("worse %v, judged %v", worse, ok)
	}
	for _, list := range [][]diff.Change{c.Parts, c.Causes, c.Kernels, c.Stacks} {
		for _, r := range list {
			if r.Sure {
				t.Errorf("noise is taken for a change: %+v", r)
			}
		}
	}
}

// TestSlower holds that a tenth more is found and that the limit decides.
func TestSlower(t *testing.T) {
	slower := spread(exporttest.Decode(100), 0.04, 2)
	for i := range slower.Events {
		if e := &slower.Events[i]; e.Kind == event.Kernel && e.Ret == 1 {
			e.Dur += 2000
		}
	}
	c := diff.New("a", "b", spread(exporttest.Decode(100), 0, 1), slower)
	if c.Latency == nil || !c.Latency.Sure || c.Latency.Relative < 0.02 || c.Latency.Relative > 0.06 {
		t.Fatalf("latency %+v", c.Latency)
	}
	for limit, want := range map[float64]bool{0.01: true, 0.10: false} {
		if worse, ok := c.Worse(limit); worse != want || !ok {
			t.Errorf("limit %f: worse %v, judged %v", limit, worse, ok)
		}
	}
	if len(c.Kernels) != 2 || !strings.Contains(c.Kernels[0].Name, "gemm") || !c.Kernels[0].Sure || c.Kernels[1].Sure {
		t.Errorf("kernels %+v", c.Kernels)
	}
	var b bytes.Buffer
	if err := c.Text(&b); err != nil || !strings.Contains(b.String(), "B is slower") {
		t.Errorf("%v: %s", err, b.String())
	}
}

// TestRangesOfAPart holds that shares of the time are not given as parts of ranges that take half of it.
func TestRangesOfAPart(t *testing.T) {
	a, b := spread(exporttest.Decode(100), -0.5, 1), spread(exporttest.Decode(100), -0.5, 2)
	c := diff.New("a", "b", a, b)
	if c.Latency == nil || c.Scale != "share of the time" || c.Parts[0].A > 1 {
		t.Errorf("latency %+v, scale %q, %+v", c.Latency, c.Scale, c.Parts)
	}
	whole := diff.New("a", "b", exporttest.Decode(100), exporttest.Decode(100))
	var text bytes.Buffer
	if err := whole.Text(&text); err != nil || !strings.Contains(text.String(), "Where the time goes, per iteration") {
		t.Errorf("%v: %s", err, text.String())
	}
	for i := range whole.Stacks[1:] {
		if whole.Stacks[i].A < whole.Stacks[i+1].A {
			t.Errorf("equal functions are not in the order of their size: %+v", whole.Stacks)
		}
	}
}

// TestKernelsWithinTheBreakdown holds that kernels are a part of the time that the GPU computed, as far as it counts.
func TestKernelsWithinTheBreakdown(t *testing.T) {
	half := func() *recording.Recording {
		rec := exporttest.Decode(100)
		rec.Meta.Overhead = &recording.Overhead{Sources: []recording.OverheadSource{{
			Name:   recording.SchedulingSource,
			Paused: []recording.Pause{{From: rec.Meta.From, To: rec.Meta.From + 2*(rec.Meta.To-rec.Meta.From)/5}},
		}}}
		return rec
	}
	c := diff.New("a", "b", half(), half())
	sum, computing := 0.0, 0.0
	for _, k := range c.Kernels {
		sum += k.A
	}
	for _, p := range c.Parts {
		if p.Name == "GPU compute" {
			computing = p.A
		}
	}
	if sum == 0 || sum > 1.1*computing {
		t.Errorf("kernels take %f of %f", sum, computing)
	}
}

// TestOtherIterations holds that iterations of different kinds are not compared, and that the text says why.
func TestOtherIterations(t *testing.T) {
	other := exporttest.Decode(100)
	for i, name := range other.Meta.GPU.Ranges {
		other.Meta.GPU.Ranges[i] = "other " + name
	}
	c := diff.New("a", "b", exporttest.Decode(100), other)
	if c.Latency != nil || !strings.Contains(c.Differ, "in A, ") || c.Scale != "share of the time" {
		t.Errorf("latency %+v, %q, scale %q", c.Latency, c.Differ, c.Scale)
	}
	if _, ok := c.Worse(0.05); ok {
		t.Error("different iterations were judged")
	}
	var b bytes.Buffer
	if err := c.Text(&b); err != nil || !strings.Contains(b.String(), "cannot be compared") {
		t.Errorf("%v: %s", err, b.String())
	}
}

// TestNoLatency holds that what cannot be judged is not judged well.
func TestNoLatency(t *testing.T) {
	c := diff.New("a", "b", exporttest.Decode(100), exporttest.Decode(0))
	if _, ok := c.Worse(0.05); ok {
		t.Error("a latency of a recording without iterations was judged")
	}
}
