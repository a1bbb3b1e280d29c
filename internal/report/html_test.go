package report

import "testing"

// TestPageHeadings: a page promises no more than the terminal: without a verdict nothing is to be changed, and what is broken down is the main thread's time.
func TestPageHeadings(t *testing.T) {
	for _, c := range []struct{ in, heading, went string }{
		{"answer_not_enough", "What was seen all the same, without a verdict", "Where the main thread's time went"},
		{"answer_worker", "What to change, what pays most first", "Where the time went"},
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
