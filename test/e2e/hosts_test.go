package e2e

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/report"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// onHost is what a recording has of some processes, as a host would have recorded it whose clock is ahead, ns.
func onHost(rec *recording.Recording, pids []uint32, ahead int64) *recording.Recording {
	out := *rec
	m := &out.Meta
	m.Target, m.From, m.To = pids[0], m.From+uint64(ahead), m.To+uint64(ahead)
	foreign := func(pid uint32) bool { return !slices.Contains(pids, pid) }
	m.Processes = slices.DeleteFunc(slices.Clone(m.Processes),
		func(p recording.Process) bool { return foreign(p.PID) })
	for i := range m.Processes {
		p := &m.Processes[i]
		p.Born += uint64(ahead)
		if p.Died != 0 {
			p.Died += uint64(ahead)
		}
	}
	m.Threads = slices.DeleteFunc(slices.Clone(m.Threads), func(t recording.Thread) bool { return foreign(t.PID) })
	gpu := *m.GPU
	m.GPU = &gpu
	gpu.Agents = slices.DeleteFunc(slices.Clone(gpu.Agents), func(a recording.Agent) bool { return foreign(a.PID) })
	gpu.Devices = slices.DeleteFunc(slices.Clone(gpu.Devices), func(d recording.Device) bool { return foreign(d.PID) })
	gpu.Streams = slices.DeleteFunc(slices.Clone(gpu.Streams), func(s recording.Stream) bool { return foreign(s.PID) })
	gpu.Windows = slices.DeleteFunc(slices.Clone(gpu.Windows),
		func(w recording.GPUWindow) bool { return foreign(w.PID) })
	for i := range gpu.Windows {
		gpu.Windows[i].From += uint64(ahead)
		gpu.Windows[i].To += uint64(ahead)
	}
	out.Events = slices.DeleteFunc(slices.Clone(out.Events), func(e event.Event) bool { return foreign(e.PID) })
	for i := range out.Events {
		out.Events[i].TS += uint64(ahead)
	}
	return &out
}

// TestSeveralHosts: recordings of two ranks by two clocks, of which one is ahead, are joined by the collectives that
// both took part in: the offset is right within the error that is stated, and the rank that is late is named.
func TestSeveralHosts(t *testing.T) {
	needs.Long(t)
	needs.Root(t, "it loads BPF programs and attaches probes")
	const late, ahead, delay = 1, int64(-12_345_678_901), 3 * time.Millisecond
	v, d, pids := lateRanks(t, 2, late, delay, "cpu")
	v.WaitLine("done")
	rec := d.recording(v.PID)
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.isc"), filepath.Join(dir, "b.isc")
	for place, host := range map[string]*recording.Recording{
		a: onHost(rec, []uint32{uint32(v.PID), uint32(pids[0])}, 0),
		b: onHost(rec, []uint32{uint32(pids[late])}, ahead),
	} {
		must.NoError(t, archive.Write(place, host, nil))
	}
	text, complaint, code := d.inferscope("analyze", a, b, "--format", "json")
	if code != 0 {
		t.Fatalf("%d: %s", code, complaint)
	}
	// The wall clocks of both recordings are the one of this machine: what they differ by is the error of the offset.
	said := regexp.MustCompile(`to within (\S+) (µs|ms) by ([\d,]+) collectives; the wall clocks differ by (\S+) (ns|µs|ms)`).
		FindStringSubmatch(complaint)
	if said == nil {
		t.Fatalf("the offset is not told: %s", complaint)
	}
	unit := map[string]time.Duration{"ns": 1, "µs": time.Microsecond, "ms": time.Millisecond}
	value := func(number, of string) time.Duration {
		n, err := strconv.ParseFloat(number, 64)
		must.NoError(t, err)
		return time.Duration(float64(unit[of]) * n)
	}
	// A rank that is always late bounds the offset from one side by how late it is.
	if bound, off := value(said[1], said[2]), value(said[4], said[5]); off > bound || bound > delay+time.Millisecond {
		t.Errorf("the offset is off by %v, to within %v is told", off, bound)
	}
	var m report.Model
	must.NoError(t, json.Unmarshal([]byte(text), &m))
	if len(m.Sources) == 0 || m.Sources[0].Name != "hosts" || !strings.Contains(m.Sources[0].Detail, said[0]) {
		t.Errorf("sources %+v", m.Sources)
	}
	if !slices.ContainsFunc(m.Diagnosis.Findings, func(f diagnose.Finding) bool {
		return f.Cause == "straggler" && int(f.PID) == pids[late]
	}) {
		t.Errorf("no finding is that of the straggler %d: %+v", pids[late], m.Diagnosis.Findings)
	}
	_, complaint, code = d.inferscope("analyze", a, a, "--format", "json")
	if code != 0 || !strings.Contains(complaint, "differ by 0 ns") {
		t.Errorf("a recording with itself: %d, %s", code, complaint)
	}
	v.Go()
	v.Finish()
	d.stop()
}
