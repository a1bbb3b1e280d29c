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
	sync := s.Stack(recordtest.Native("cudaMemcpyAsync", "libcudart.so"),
		recordtest.Python("choose", "/app/infer.py", 35))
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
	var asked [][]cause.Remedy
	s.also = func(remedies ...cause.Remedy) (diagnose.Gain, bool) {
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
	if !slices.Contains(asked[0], cause.Remedy{Cause: cause.PythonWork, Less: true}) ||
		!slices.Contains(asked[0], cause.Remedy{Cause: cause.SyncCopy}) {
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
	s.also = func(remedies ...cause.Remedy) (diagnose.Gain, bool) {
		return diagnose.Gain{Speedup: 3, Low: 3, High: 3}, len(remedies) > 1
	}
	if d := s.diagnose(); len(d.Together) != 1 || d.Together[0].One {
		t.Errorf("together: %+v", d.Together)
	}
}

// TestNextLimit: what limits the program once the first finding is fixed is named, whether it is a finding or hidden;
// and the same two are not listed again as all findings.
func TestNextLimit(t *testing.T) {
	for _, next := range []cause.ID{cause.Disk, cause.PythonWork} {
		s := fetching(t, "tokenize")
		first := cause.SyncCopy
		if next == cause.PythonWork {
			s.next = map[cause.ID]cause.ID{cause.SyncCopy: next, cause.PythonWork: cause.SyncCopy}
		} else {
			s.next = map[cause.ID]cause.ID{cause.SyncCopy: next, cause.PythonWork: next}
		}
		var asked [][]cause.Remedy
		s.also = func(remedies ...cause.Remedy) (diagnose.Gain, bool) {
			if len(remedies) > 1 {
				asked = append(asked, slices.Clone(remedies))
			}
			return diagnose.Gain{Speedup: 3, Low: 2.5, High: 3.5}, len(remedies) > 1
		}
		d := s.diagnose()
		if len(d.Findings) == 0 || len(d.Together) == 0 {
			t.Fatalf("findings %q, together %+v", causes(d), d.Together)
		}
		if d.Findings[0].Cause == "python-work" {
			first = cause.PythonWork
		}
		got, want := d.Together[0], s.next[first]
		row, _, _ := cause.ByKey(got.Causes[1])
		if !got.Next || got.One || got.Causes[0] != d.Findings[0].Cause || row.ID != want {
			t.Errorf("%+v, want %v next", got, want)
		}
		if !slices.Equal(asked[0], []cause.Remedy{{Cause: first}, {Cause: want}}) {
			t.Errorf("of the next limit %+v is asked", asked[0])
		}
		if alone := len(d.Together) == 1; alone != (next == cause.PythonWork) {
			t.Errorf("together: %+v", d.Together)
		}
	}
	s := fetching(t, "tokenize")
	s.next = map[cause.ID]cause.ID{cause.SyncCopy: cause.Disk, cause.PythonWork: cause.Disk}
	s.predict = func(id cause.ID) (diagnose.Gain, bool) { return diagnose.Gain{Speedup: 1, Low: 1, High: 1.01}, true }
	if d := s.diagnose(); slices.ContainsFunc(d.Together, func(x diagnose.Together) bool { return x.Next }) {
		t.Errorf("a remedy that brings nothing uncovers something: %+v", d.Together)
	}
}
