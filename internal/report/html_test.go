package report

import "testing"

// TestPageHeadings: a page promises no more than the terminal: without a verdict nothing is to be changed, and what is
// broken down is the main thread's time.
func TestPageHeadings(t *testing.T) {
	for _, c := range []struct{ in, heading, went string }{
		{"answer_not_enough", "What was seen, without a verdict", "Where the main thread's time went"},
		{"answer_left", "What is left to gain", "Where the time went"},
		{"answer_worker", "What to change, most time won back first", "Where the time went"},
	} {
		for _, s := range answerScenarios() {
			if s.name != c.in {
				continue
			}
			if in := htmlInput(New(s.rec)); in.Heading != c.heading || in.Went != c.went {
				t.Errorf("%s: %q, %q", c.in, in.Heading, in.Went)
			}
		}
	}
}

// TestPageIterations: the page shares an iteration out as the terminal does.
func TestPageIterations(t *testing.T) {
	some := 0
	for _, s := range answerScenarios() {
		m := New(s.rec)
		each, ok := perIteration(m)
		if in := htmlInput(m); ok != (in.Iteration > 0) || ok && in.Iteration != uint64(each) {
			t.Errorf("%s: %d ns an iteration, want %v (%v)", s.name, in.Iteration, each, ok)
		}
		if ok && uint64(each) != m.Diagnosis.Iterations.P50 {
			some++
		}
	}
	if some == 0 {
		t.Error("no scenario whose iterations differ from their median")
	}
}
