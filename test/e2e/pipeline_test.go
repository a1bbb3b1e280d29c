package e2e

import (
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/report"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// TestPipeline: of two GPUs that work one after the other each waits for the other half of the time, and that is named;
// the copies between them are counted as they were made.
func TestPipeline(t *testing.T) {
	needRoot(t)
	p := cudasim.Build(t)
	program := filepath.Join(t.TempDir(), "pipeline")
	cc := exec.Command("gcc", "-O1", "-Wall", "-Werror", "-o", program, "testdata/pipeline.c", p.Libcuda(cudasim.Shape580))
	if text, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("compile testdata/pipeline.c: %v\n%s", err, text)
	}
	v := cudasim.Start(t, cudasim.Options{Program: []string{program}, Env: []string{"CUDASIM_DEVICES=2"}})
	d := startDaemon(t, v.PID, "--gpu", "continuous", "--overhead-budget", "0")
	d.waitAgent(v.PID, "running")
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
