package diagnose_test

import (
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// fetching copies a result to the host and searches it there.
func fetching(t *testing.T, search string) *scene {
	s := newScene(t)
	sync := s.Stack(
		recordtest.Native("cudaMemcpyAsync", "libcudart.so"),
		recordtest.Python("choose", "/app/infer.py", 35),
	)
	find := s.Stack(recordtest.Python(search, "/app/infer.py", 36))
	for i := range uint64(10) {
		s.kernel(i*100, i*100+20)
		s.step(i*100+20, i*100+60, cause.SyncCopy, func(x *gap.Step) { x.Stack = uint64(sync) })
		s.step(i*100+60, i*100+100, cause.PythonWork, func(x *gap.Step) { x.Stack = uint64(find) })
	}
	s.predict = func(id cause.ID) (diagnose.Gain, bool) { return diagnose.Gain{Speedup: 1.6, Low: 1.5, High: 1.7}, true }
	return s
}

// TestOneChange: a result that is fetched and searched in one function is two findings and one change.
func TestOneChange(t *testing.T) {
	s := fetching(t, "choose")
	var asked [][]diagnose.Remedy
	s.also = func(remedies ...diagnose.Remedy) (diagnose.Gain, bool) {
		if len(remedies) == 1 {
			return diagnose.Gain{Speedup: 2, Low: 1.8, High: 2.2}, remedies[0].Cause == cause.PythonWork
		}
		asked = append(asked, slices.Clone(remedies))
		return diagnose.Gain{Speedup: 13, Low: 11, High: 15}, true
	}
	d := s.diagnose()
	if len(d.Together) != 2 || !d.Together[0].One || d.Together[1].One || len(d.Together[0].Causes) != 2 {
		t.Fatalf("together: %+v; findings %q", d.Together, causes(d))
	}
	if !slices.Contains(asked[0], diagnose.Remedy{Cause: cause.PythonWork, Less: true}) ||
		!slices.Contains(asked[0], diagnose.Remedy{Cause: cause.SyncCopy}) {
		t.Errorf("of one change %+v is asked", asked[0])
	}
	if g := d.Together[0].Gain; g.Speedup != 5 || g.Limit == "" { // the kernels take a fifth of the time
		t.Errorf("%+v", g)
	}
	for i := range d.Findings {
		if f := &d.Findings[i]; (f.Less != nil) != (f.Cause == "python-work") {
			t.Errorf("%s: %+v", f.Cause, f.Less)
		}
	}

	s = fetching(t, "tokenize") // another function: two changes
	s.also = func(remedies ...diagnose.Remedy) (diagnose.Gain, bool) {
		return diagnose.Gain{Speedup: 3, Low: 3, High: 3}, len(remedies) > 1
	}
	if d := s.diagnose(); len(d.Together) != 1 || d.Together[0].One {
		t.Errorf("together: %+v", d.Together)
	}
}
