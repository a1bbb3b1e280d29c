package e2e

import (
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/report"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// TestPipeline: of two GPUs that work one after the other each waits for the other half of the time, and that is named;
// the copies between them are counted as they were made.
func TestPipeline(t *testing.T) {
	needs.Long(t)
	needs.Root(t, "it loads BPF programs and attaches probes")
	p := cudasim.Build(t)
	program := filepath.Join(t.TempDir(), "pipeline")
	cc := exec.Command("gcc", "-O1", "-Wall", "-Werror", "-o", program, "testdata/pipeline.c", p.Libcuda(cudasim.Shape580))
	must.Run(t, cc)
	v := cudasim.Start(t, cudasim.Options{Program: []string{program}, Env: []string{"CUDASIM_DEVICES=2"}})
	d := startDaemon(t, v.PID, "--gpu", "continuous", "--overhead-budget", "0")
	d.waitOpen(v.PID)
	d.waitKernels(v.PID, "counted", 4000)
	v.Go()
	v.WaitLine("done")
	rec := d.recording(v.PID)
	m := report.New(rec)
	if len(m.GPU.Peers) != 1 {
		t.Fatalf("copies between GPUs: %+v", m.GPU.Peers)
	}
	peers, truth := m.GPU.Peers[0], uint64(0)
	first, last := ^uint64(0), uint64(0) // recorded
	for _, e := range rec.Events {
		if e.Kind == event.Copy {
			first, last = min(first, e.TS), max(last, e.TS)
		}
	}
	for _, o := range v.Truth().Ops {
		if o.Copy == cudasim.PeerToPeer && o.Start >= first && o.Start <= last {
			truth++
		}
	}
	if peers.Source != 0 || peers.Destination != 1 || peers.Bytes != peers.Count<<20 || peers.Count < 150 ||
		peers.Count != truth {
		t.Errorf("copies %+v, in truth %d", peers, truth)
	}
	findings := m.Diagnosis.Findings
	i := slices.IndexFunc(findings, func(f diagnose.Finding) bool { return f.Cause == "pipeline-bubble" })
	if i < 0 {
		t.Fatalf("no pipeline-bubble: %+v", findings)
	}
	// Each GPU works for the 2 ms of a step for which the other one waits. A thread without a CPU makes steps longer.
	working := m.GPU.Busy.Share
	if f := findings[i]; math.Abs(f.Share-working) > 0.08 {
		t.Errorf("%s, %.2f of the time, each GPU works for %.2f: %s", f.Title, f.Share, working, fmt.Sprint(f.Evidence))
	}
	v.Go()
	v.Finish()
	d.stop()
}

// TestPipelineOfProcesses: stages that are processes wait for each other in kernels of NCCL. That is a pipeline bubble
// as far as the one that is waited for works, and exposed communication where transfers take the time.
func TestPipelineOfProcesses(t *testing.T) {
	needs.Long(t)
	needs.Root(t, "it loads BPF programs and attaches probes")
	const short, long = 1000, 1 << 20 // elements: transfers of 10 µs and of 2 ms, between 10 ms of work
	for _, x := range []struct {
		stages, turns, batches, elements int
		bubbles                          bool
	}{
		{2, 120, 1, short, true},
		{2, 50, 4, short, true},
		{4, 60, 1, short, true},
		{4, 40, 4, short, true},
		{2, 3, 100, short, false}, // a hundredth of the time
		{2, 10, 20, long, false},
	} {
		name := fmt.Sprintf("%d stages, %d batches of %d", x.stages, x.batches, x.elements)
		v, d, pids := startRanks(t, x.stages, []string{
			"pipe", fmt.Sprint(x.stages), fmt.Sprint(x.turns), fmt.Sprint(x.batches), "10000", fmt.Sprint(x.elements),
		})
		waitFor(t, "transfers of all stages", func() bool {
			sleep(200)
			rec := d.fetch(v.PID)
			return !slices.ContainsFunc(pids, func(pid int) bool { return len(kernelsIn(rec, pid, "SendRecv")) == 0 })
		})
		v.Go()
		v.WaitLine("done")
		d.waitAllKernels(v.PID, "SendRecv", 100)
		rec := d.recording(v.PID)
		said := analysis.Run(rec).Diagnosis
		costs := map[string]float64{} // parts of the time
		var evidence []diagnose.Evidence
		for i := range said.Findings {
			f := &said.Findings[i]
			costs[f.Cause] = f.Share
			if f.Cause == "pipeline-bubble" {
				evidence = f.Evidence
			}
		}
		// On a loaded machine processes come late: that is a cause of its own, of waits that would be bubbles.
		late := costs["no-cpu"]
		bubble, exposed := costs["pipeline-bubble"], costs["exposed-communication"]
		truth := float64(waitingForWorkers(rec)) / float64(said.Breakdown.Time)
		if off := math.Abs(bubble - truth); off > 0.05+late || x.bubbles != (bubble > 0.1) ||
			x.bubbles != (bubble > exposed) && exposed > 0 && late < 0.05 || costs["straggler"]+costs["imbalance"] > 0 {
			t.Errorf("%s: bubbles are %.3f of the time, by the kernels themselves %.3f: %v", name, bubble, truth, costs)
		}
		if x.elements == long && exposed < 0.1 {
			t.Errorf("%s: transfers are %.3f of the time: %v", name, exposed, costs)
		}
		want := "the rank that it waited for computed"
		if text := fmt.Sprint(evidence); x.bubbles && !strings.Contains(text, want) {
			t.Errorf("%s: the evidence lacks %q: %s", name, want, text)
		}
		v.Go()
		v.Finish()
		d.stop()
	}
}

// waitingForWorkers sums up for how long GPUs communicated and computed nothing, and another one computed, ns.
func waitingForWorkers(rec *recording.Recording) (ns uint64) {
	tl := timeline.Build(rec)
	talks := tl.Communicates()
	computes, communicates := make([][]timeline.Span, len(tl.Devices)), make([][]timeline.Span, len(tl.Devices))
	for i := range tl.Activities {
		act := &tl.Activities[i]
		if act.Kind != timeline.Kernel {
			continue
		}
		on, span := tl.Streams[act.Stream].Device, timeline.Span{From: act.Start, To: act.End}
		if talks[tl.KernelIndex(act)] {
			communicates[on] = append(communicates[on], span)
		} else {
			computes[on] = append(computes[on], span)
		}
	}
	for on := range tl.Devices {
		var others []timeline.Span
		for other := range tl.Devices {
			if other != on {
				others = append(others, computes[other]...)
			}
		}
		waits := timeline.Join(communicates[on]).Without(timeline.Join(computes[on]))
		ns += waits.Both(timeline.Join(others)).Total()
	}
	return ns
}
