package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// maxReruns is the number of failed tests above which nothing is run again: so many failures have one cause.
const maxReruns = 6

// neverRerun finds what is a failure however rarely it comes: a data race, a crash, and harm to a watched process.
// Those words stand in the output of a test, or of the victims and daemons that it started.
var neverRerun = regexp.MustCompile(
	`DATA RACE|panic: |fatal error: |SIG(SEGV|BUS|ILL|ABRT|FPE|TRAP)|signal: |exit status|core dumped|harmed|died|failed \d+ times|launches failed`,
)

// failure is a failed Go test.
type failure struct {
	pkg, test, output string
}

// rerun runs the failed tests once more, each alone, and takes those that pass as often as asked for out of the
// failures. The command is that of follow, with arguments for `go test` behind it. What passed is listed by the
// summary: a test that depends on the pace of its machine is to be mended.
func (t *tally) rerun(times int, log io.Writer) {
	if times == 0 || len(t.failedTests) == 0 || len(t.failedTests) > maxReruns || t.failed > len(t.failedTests) {
		return
	}
	for _, f := range t.failedTests {
		if neverRerun.MatchString(f.output) {
			continue
		}
		args := []string{"test", "-count=1", "-timeout", "5m", "-run", runPattern(f.test), f.pkg}
		if passes(args, times, log) {
			t.failed--
			t.passed++
			t.failures = slices.DeleteFunc(t.failures, func(name string) bool { return name == f.name() })
			t.unsteady = append(t.unsteady, f.name())
		}
	}
}

// passes reports whether `go ARGS` ends well each of the times.
func passes(args []string, times int, log io.Writer) bool {
	for i := range times {
		cmd := exec.Command("go", args...)
		cmd.Env = os.Environ()
		out, err := cmd.CombinedOutput()
		fmt.Fprintf(log, "run again, %d of %d: go %s\n", i+1, times, strings.Join(args, " "))
		if err != nil {
			fmt.Fprintf(log, "%s%v\n", out, err)
			return false
		}
	}
	return true
}

func (f failure) name() string { return f.pkg + "." + f.test }

// runPattern is the pattern of go test -run for one test or subtest.
func runPattern(test string) string {
	parts := strings.Split(test, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return strings.Join(parts, "/")
}
