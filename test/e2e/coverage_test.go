package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// allProbed fails the test unless each library of pid was probed, and logs how long after it was noticed.
func allProbed(t *testing.T, rec *recording.Recording, pid int) {
	t.Helper()
	found := false
	for _, l := range rec.Meta.Libraries {
		if int(l.PID) != pid {
			continue
		}
		found = true
		t.Logf("%s was probed %v after it was noticed", l.Path, time.Duration(l.Probed-l.Mapped))
		if l.Error != "" || l.Probed < l.Mapped {
			t.Errorf("%s: noticed at %d, probed at %d, error %q", l.Path, l.Mapped, l.Probed, l.Error)
		}
	}
	if !found {
		t.Errorf("no library of pid %d is listed: %+v", pid, rec.Meta.Libraries)
	}
}

func TestLibraryLoadedLater(t *testing.T) {
	v := cudasim.Start(t, cudasim.Options{Lib: "driver", Args: []string{"--late"}, NoReady: true},
		"print up", "wait", "dlopen-now", "print loaded", "wait", "launch 500", "sync", "print done", "wait")
	v.WaitLine("up")
	d := startDaemon(t, v.PID, probesOnly...)
	d.waitLog("nothing to probe yet")
	v.Go()
	v.WaitLine("loaded")
	loaded := now()
	waitFor(t, "the library to be probed", func() bool {
		s := d.status()
		return len(s.Libraries) == 1 && s.Libraries[0].Probed != 0
	})
	t.Logf("probed %v after it was loaded", time.Duration(int64(d.status().Libraries[0].Probed)-int64(loaded)))
	began := now()
	v.Go()
	v.WaitLine("done")
	rec := d.recording(v.PID)
	compareCounts(t, since(rec, v.PID, began), happened(v.Truth(), began, byDefault))
	d.stop()
}

// since counts like seen, from a time on.
func since(rec *recording.Recording, pid int, from uint64) map[row]int {
	later := *rec
	later.Events = nil
	for _, e := range rec.Events {
		if e.TS >= from {
			later.Events = append(later.Events, e)
		}
	}
	return seen(&later, pid)
}

func TestForkedChild(t *testing.T) {
	t.Parallel()
	v := cudasim.Start(t, cudasim.Options{Lib: "driver"},
		"wait", "launch 10", "fork { print child; sleep 300ms; launch 200; sync }", "print done", "wait")
	d := startDaemon(t, v.PID, probesOnly...)
	began := now()
	v.Go()
	v.WaitLine("done")
	waitFor(t, "the child's end to be noticed", func() bool {
		for _, p := range d.status().Targets[0].Processes {
			if p.Died != 0 {
				return true
			}
		}
		return false
	})
	rec := d.recording(v.PID)
	if len(rec.Meta.Processes) != 2 {
		t.Fatalf("%d processes in the recording, not 2: %+v", len(rec.Meta.Processes), rec.Meta.Processes)
	}
	child := rec.Meta.Processes[1]
	if child.PID == uint32(v.PID) {
		child = rec.Meta.Processes[0]
	}
	if child.Parent != uint32(v.PID) || child.Died == 0 || child.ExitCode != 0 {
		t.Errorf("the child: %+v", child)
	}
	truth, err := cudasim.ReadTruth(v.TruthOf(int(child.PID)))
	must.NoError(t, err)
	compareCounts(t, seen(rec, int(child.PID)), happened(truth, began, byDefault))
	compareCounts(t, seen(rec, v.PID), happened(v.Truth(), began, byDefault))
	allProbed(t, rec, int(child.PID))
	d.stop()
}

func TestExec(t *testing.T) {
	t.Parallel()
	v := cudasim.Start(t, cudasim.Options{Lib: "driver"},
		"wait", "launch 10", "exec { print again; wait; launch 300; h2d 4096 x3; sync; print done; wait }")
	d := startDaemon(t, v.PID, probesOnly...)
	v.Go()
	v.WaitLine("again")
	time.Sleep(100 * time.Millisecond) // the new program's library is probed meanwhile
	began := now()
	v.Go()
	v.WaitLine("done")
	rec := d.recording(v.PID)
	truth, err := cudasim.ReadTruth(v.TruthPath() + ".1")
	must.NoError(t, err)
	compareCounts(t, since(rec, v.PID, began), happened(truth, began, byDefault))
	d.stop()
}

func TestTwoCopiesOfALibrary(t *testing.T) {
	t.Parallel()
	copied := filepath.Join(t.TempDir(), "libcuda.so.1")
	content, err := os.ReadFile(cudasim.Build(t).Libcuda(cudasim.Shape535))
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(copied, content, 0o755))
	v := cudasim.Start(t, cudasim.Options{Lib: "driver"},
		"open "+copied, "print both", "wait", "launch 123", "sync", "print done", "wait")
	v.WaitLine("both")
	d := startDaemon(t, v.PID, probesOnly...)
	began := now()
	v.Go()
	v.WaitLine("done")
	rec := d.recording(v.PID)
	if len(rec.Meta.Libraries) != 2 {
		t.Errorf("%d libraries, not 2: %+v", len(rec.Meta.Libraries), rec.Meta.Libraries)
	}
	got := 0
	for r, n := range since(rec, v.PID, began) {
		if r.name == "cuLaunchKernel" {
			got += n
		}
	}
	if got != 123 {
		t.Errorf("%d launches seen, 123 made", got)
	}
	d.stop()
}

func TestStaticRuntimeIsSeenAtTheDriver(t *testing.T) {
	t.Parallel()
	p := cudasim.Build(t)
	v := cudasim.Start(t, cudasim.Options{Program: []string{p.VictimStatic}}, "wait", "launch 77",
		"h2d 4096 x5", "sync", "print done", "wait")
	d := startDaemon(t, v.PID, probesOnly...)
	began := now()
	v.Go()
	v.WaitLine("done")
	rec := d.recording(v.PID)
	want := happened(v.Truth(), began, byDefault)
	for r := range want {
		if r.library == "runtime" {
			delete(want, r) // it is inside the program: no library to probe
		}
	}
	compareCounts(t, since(rec, v.PID, began), want)
	d.stop()
}

func TestTargetGoesOnAfterKill9(t *testing.T) {
	t.Parallel()
	v := cudasim.Start(t, cudasim.Options{Lib: "driver"}, "wait", "rate 20000 for 1500ms", "print done", "wait")
	d := startDaemon(t, v.PID, probesOnly...)
	v.Go()
	time.Sleep(300 * time.Millisecond)
	must.NoError(t, d.cmd.Process.Kill())
	d.exitCode()
	v.WaitLine("done")
	waitFor(t, "libcuda's text to be that of its file",
		func() bool { return cudasim.ChangedText(t, v.PID, "libcuda.so") == 0 })
	v.Go()
	v.Finish()
}

func TestNothingStaysAttached(t *testing.T) {
	t.Parallel()
	v := cudasim.Start(t, cudasim.Options{Lib: "driver"}, "wait", "launch 10", "print done", "wait")
	d := startDaemon(t, v.PID, probesOnly...)
	if cudasim.ChangedText(t, v.PID, "libcuda.so") == 0 {
		t.Error("no byte of libcuda's text differs while it is probed: this test would see nothing")
	}
	d.stop()
	if changed := cudasim.ChangedText(t, v.PID, "libcuda.so"); changed != 0 {
		t.Errorf("%d bytes of libcuda's text still differ from its file", changed)
	}
	v.Go()
	v.WaitLine("done")
}
