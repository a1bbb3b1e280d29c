package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"sort"
	"strings"
)

// testEvent is one line of `go test -json` (go doc test2json).
type testEvent struct {
	Action      string
	Package     string
	ImportPath  string // of build-output
	Test        string
	Elapsed     float64 // seconds
	Output      string
	FailedBuild string
}

// result is what is known of one test so far.
type result struct {
	action string // pass, fail, skip; "" while it runs
	output strings.Builder
}

// tally counts tests, package by package: a package is settled and forgotten
// when it ends, so that the same package may come again (with -race, say).
type tally struct {
	out                     io.Writer
	forbidden               []string
	packages                map[string]map[string]*result
	passed, failed, skipped int
	failures, skips         []string
	failedTests             []failure // of failures those that are Go tests
	unsteady                []string  // failed, and passed when they were run again
}

func newTally(out io.Writer, forbid string) *tally {
	t := &tally{out: out, packages: map[string]map[string]*result{}}
	for phrase := range strings.SplitSeq(forbid, ",") {
		if phrase = strings.TrimSpace(phrase); phrase != "" {
			t.forbidden = append(t.forbidden, phrase)
		}
	}
	return t
}

// read counts a stream of events. Lines that are no events (a tool's stray
// output) are passed on, as hiding them would hide the reason of a failure.
func (t *tally) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		var e testEvent
		if line != "" {
			if json.Unmarshal([]byte(line), &e) == nil {
				t.event(&e)
			} else {
				fmt.Fprint(t.out, line)
			}
		}
		if err == io.EOF {
			t.abandon()
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (t *tally) event(e *testEvent) {
	if e.Action == "build-output" {
		fmt.Fprint(t.out, e.Output)
		return
	}
	if e.Package == "" {
		return
	}
	tests := t.packages[e.Package]
	if tests == nil {
		tests = map[string]*result{}
		t.packages[e.Package] = tests
	}
	r := tests[e.Test] // "" stands for the package itself
	if r == nil {
		r = &result{}
		tests[e.Test] = r
	}
	switch e.Action {
	case "output":
		r.output.WriteString(e.Output)
	case "pass", "fail", "skip":
		r.action = e.Action
		if e.Test == "" {
			t.settle(e.Package, e.Elapsed)
		}
	}
}

// abandon settles packages whose end never came: the stream was cut off.
func (t *tally) abandon() {
	for _, name := range sortedKeys(t.packages) {
		t.packages[name][""] = &result{action: "fail"}
		t.settle(name, 0)
	}
}

// settle counts the tests of a package that ended, and forgets it.
func (t *tally) settle(pkg string, seconds float64) {
	tests := t.packages[pkg]
	delete(t.packages, pkg)
	self := tests[""]
	before := *t
	for _, name := range sortedKeys(tests) {
		if name == "" {
			continue
		}
		r := tests[name]
		if r.action == "" { // it was running when its package died
			r.action = "fail"
		}
		if isParent(tests, name) && (r.action != "fail" || childFailed(tests, name)) {
			t.crash(r)
			continue
		}
		t.countTest(pkg, name, r)
	}
	switch {
	case self.action == "fail" && t.failed == before.failed:
		fmt.Fprint(t.out, self.output.String())
		_ = t.count("fail", pkg, "")
	case self.action == "fail":
		t.crash(self)
	}
	if passed, failed, skipped := t.passed-before.passed, t.failed-before.failed, t.skipped-before.skipped; passed+failed+skipped > 0 {
		fmt.Fprintf(t.out, "%-4s %-60s %6.1fs  %d passed, %d failed, %d skipped\n",
			self.action, pkg, seconds, passed, failed, skipped)
	}
}

// crash shows what a program said when it died: that stands with the test around the one that ran, or with the package.
func (t *tally) crash(r *result) {
	said := r.output.String()
	for _, word := range []string{"panic: ", "fatal error: ", "signal: "} {
		if strings.Contains(said, word) {
			fmt.Fprint(t.out, said)
			return
		}
	}
}

func (t *tally) countTest(pkg, test string, r *result) {
	name, reason := pkg+"."+test, ""
	if r.action == "fail" {
		t.failedTests = append(t.failedTests, failure{pkg, test, r.output.String()})
	}
	if r.action == "skip" {
		reason = skipReason(r.output.String())
	}
	if r.action == "fail" || t.isForbidden(r.action, reason) {
		fmt.Fprint(t.out, r.output.String())
	}
	_ = t.count(r.action, name, reason)
}

// count adds one result; an unknown one is an error.
func (t *tally) count(action, name, reason string) error {
	switch {
	case action == "pass":
		t.passed++
	case action == "fail":
		t.failed++
		t.failures = append(t.failures, name)
	case t.isForbidden(action, reason):
		t.failed++
		t.failures = append(t.failures, name+" (must not be skipped here: "+reason+")")
	case action == "skip":
		t.skipped++
		t.skips = append(t.skips, name+": "+reason)
	default:
		return fmt.Errorf("%q is not pass, fail or skip", action)
	}
	return nil
}

func (t *tally) isForbidden(action, reason string) bool {
	for _, phrase := range t.forbidden {
		if action == "skip" && strings.Contains(reason, phrase) {
			return true
		}
	}
	return false
}

// summary lists what was skipped and what failed, then the one line that counts.
func (t *tally) summary() {
	list := func(title string, names []string) {
		if len(names) > 0 {
			fmt.Fprintf(t.out, "\n%s:\n  %s\n", title, strings.Join(names, "\n  "))
		}
	}
	list("skipped", t.skips)
	list("unsteady: failed, and passed when they were run again", t.unsteady)
	list("FAILED", t.failures)
	fmt.Fprintf(t.out, "\n%d passed, %d failed, %d skipped\n", t.passed, t.failed, t.skipped)
}

func isParent(tests map[string]*result, name string) bool {
	for other := range tests {
		if strings.HasPrefix(other, name+"/") {
			return true
		}
	}
	return false
}

func childFailed(tests map[string]*result, name string) bool {
	for other, r := range tests {
		if strings.HasPrefix(other, name+"/") && r.action != "pass" && r.action != "skip" {
			return true
		}
	}
	return false
}

// skipReason finds what t.Skip said: test output prefixes it with "file.go:line: ".
func skipReason(output string) string {
	m := regexp.MustCompile(`(?m)^\s+\S+\.go:\d+: (.*)$`).FindAllStringSubmatch(output, -1)
	if len(m) == 0 {
		return "no reason given"
	}
	return m[len(m)-1][1]
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
