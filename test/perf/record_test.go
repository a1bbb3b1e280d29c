package perf

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/test/watch"
)

// both samples the first thread of v with the daemon and with perf at the same time. For a
// victim that keeps an account of its time, known is that of the same stretch. Options are perf record's.
func both(t *testing.T, v *victim, options ...string) (ours []watch.Sample, theirs []stack, known shares) {
	t.Helper()
	program := needPerf(t)
	d := watch.Start(t, v.PID, "--cpu-sampling-frequency-hz", hz)
	d.Until("the first whole stack", func() bool {
		samples := watch.Samples(d.Recording(v.PID, api.Window{Last: time.Second}), v.PID)
		return slices.ContainsFunc(samples, func(s watch.Sample) bool { return s.Origin == event.Whole })
	})
	data := filepath.Join(t.TempDir(), "perf.data")
	var before shares
	if v.accounts {
		before = v.spent(t, shares{})
	}
	args := append(
		[]string{"record", "-q", "-F", hz, "-e", "cpu-clock", "-p", strconv.Itoa(v.PID), "-o", data},
		options...)
	judge := exec.Command(program, append(args, "--", "sleep", fmt.Sprint(window.Seconds()))...)
	var said strings.Builder
	judge.Stderr = &said
	must.NoError(t, judge.Start())
	rec := d.Recording(v.PID, api.Window{For: window})
	if v.accounts {
		known = v.spent(t, before)
	}
	if err := judge.Wait(); err != nil {
		t.Fatalf("perf record: %v\n%s", err, said.String())
	}
	ours = watch.Samples(rec, v.PID)
	for _, lost := range watch.Doubts(rec) {
		t.Errorf("lost: %+v", lost)
	}
	d.Stop()
	return ours, read(t, program, data, v.PID), known
}

// needPerf returns the program, or skips where it cannot sample.
func needPerf(t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath("perf")
	if err != nil {
		t.Skip("needs tool perf (linux-perf; scripts/install-deps.sh judges installs it): ", err)
	}
	out, err := exec.Command(program, "record", "-q", "-F", hz, "-e", "cpu-clock", "-o",
		filepath.Join(t.TempDir(), "try"), "--", "true").
		CombinedOutput()
	if err != nil {
		t.Skipf("perf does not run here: %v\n%s", err, out)
	}
	return program
}

// read returns perf's samples of thread tid.
func read(t *testing.T, program, data string, tid int) []stack {
	t.Helper()
	out, err := exec.Command(program, "script", "-i", data, "-F", "tid,ip,sym,dso").Output()
	if err != nil {
		t.Fatalf("perf script: %v", err)
	}
	var samples []stack
	ours := false
	for line := range strings.SplitSeq(string(out), "\n") {
		// With callers: "1234", a line for each frame, an empty line. Without: "1234 55f0c0de1234 half (/tmp/shares)".
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if len(fields) == 1 || !strings.HasPrefix(line, "\t") {
			if ours = fields[0] == strconv.Itoa(tid); ours {
				samples = append(samples, nil)
			}
			fields = fields[1:]
		}
		if ours && len(fields) >= 3 { // a C++ name may hold spaces
			name, file := strings.Join(fields[1:len(fields)-1], " "), fields[len(fields)-1]
			samples[len(samples)-1] = append(samples[len(samples)-1], symbolName(name, file))
		}
	}
	return samples
}
