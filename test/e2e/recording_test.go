package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// TestRecordingLongerThanMemory: inferscope record writes more than the daemon keeps. Every call is in it once, and
// the report of the folder is that of the packed one.
func TestRecordingLongerThanMemory(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	bursts := 3
	var steps []string
	for n := range bursts {
		steps = append(steps, script...) // it begins with a wait
		steps = append(steps, fmt.Sprint("print done", n))
	}
	v := cudasim.Start(t, cudasim.Options{Lib: "driver"}, append(steps, "wait")...)
	d := startDaemon(t, v.PID, append([]string{"--keep", "14s"}, probesOnly...)...)
	folder := filepath.Join(t.TempDir(), "long.isc")
	began := now()
	var said bytes.Buffer
	cmd := exec.Command(program(t, "inferscope"), "--socket", d.socket,
		"record", "--pid", fmt.Sprint(v.PID), "-o", folder)
	cmd.Stderr = &said
	must.NoError(t, cmd.Start())
	waitFor(t, "the folder",
		func() bool { _, err := os.Stat(filepath.Join(folder, "manifest.json")); return err == nil })
	for n := range bursts {
		v.Go()
		v.WaitLine(fmt.Sprint("done", n))
		if n == bursts-1 {
			break
		}
		// The next burst is in a later stretch, so that the first is forgotten by the daemon before the end.
		waitFor(t, "the next stretch", func() bool {
			in, err := archive.Inspect(folder, false)
			return err == nil && len(in.Manifest.Stretches) > n
		})
	}
	must.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	if err := cmd.Wait(); err != nil {
		t.Fatalf("record ended with %v: %s", err, &said)
	}
	rec, err := archive.Read(folder, archive.DefaultLimits())
	must.NoError(t, err)
	truth := v.Truth()
	compareCounts(t, seen(rec, v.PID), happened(truth, began, byDefault))
	compareArguments(t, rec, truth, began)
	noLosses(t, rec)
	if kept := d.recording(v.PID); len(kept.Events) >= len(rec.Events) {
		t.Errorf("the daemon still holds %d events of %d: nothing was shown", len(kept.Events), len(rec.Events))
	}
	d.stop()
	v.Go()
	v.Finish()
	sameReport(t, folder)
}

// sameReport packs a recording and compares what analyze says of both forms, without root and without a daemon.
func sameReport(t *testing.T, folder string) {
	t.Helper()
	analyze := func(place string) string {
		cmd := exec.Command(program(t, "inferscope"), "analyze", place, "--format", "json")
		cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "INFERSCOPE_") })
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("analyze %s: %v", place, err)
		}
		return string(out)
	}
	must.Run(t, exec.Command(program(t, "inferscope"), "pack", folder))
	if a, b := analyze(folder), analyze(folder+".zip"); a != b || len(a) < 1000 {
		t.Errorf("the reports of a folder and of its packed form differ: %d and %d bytes", len(a), len(b))
	}
}

// TestRecordingOfATargetThatEnds ends by itself, and holds the end.
func TestRecordingOfATargetThatEnds(t *testing.T) {
	t.Parallel()
	v := cudasim.Start(t, cudasim.Options{Lib: "driver"}, append(script, "print done", "wait")...)
	d := startDaemon(t, v.PID, probesOnly...)
	folder := filepath.Join(t.TempDir(), "end.isc")
	began := now()
	cmd := exec.Command(program(t, "inferscope"), "--socket", d.socket, "record", "-o", folder)
	must.NoError(t, cmd.Start())
	waitFor(t, "the folder",
		func() bool { _, err := os.Stat(filepath.Join(folder, "manifest.json")); return err == nil })
	v.Go()
	v.WaitLine("done")
	truth := v.Truth()
	v.Go()
	v.Finish()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		must.NoError(t, err)
	case <-time.After(testTimeout):
		_ = cmd.Process.Kill()
		t.Fatal("record goes on although the target has ended")
	}
	rec, err := archive.Read(folder, archive.DefaultLimits())
	must.NoError(t, err)
	compareCounts(t, seen(rec, v.PID), happened(truth, began, byDefault))
	if p := rec.Meta.Processes; len(p) != 1 || p[0].Died == 0 {
		t.Errorf("the recording does not say that it ended: %+v", p)
	}
	d.stop()
}
