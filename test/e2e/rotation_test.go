package e2e

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// kept returns the names of recordings in a directory: the finished, and those that are being made.
func kept(dir string) (finished, partial []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		switch {
		case strings.HasPrefix(e.Name(), ".partial-"):
			partial = append(partial, e.Name())
		case strings.HasSuffix(e.Name(), archive.Extension):
			finished = append(finished, filepath.Join(dir, e.Name()))
		}
	}
	return finished, partial
}

// launchesIn counts the launches of all recordings, and reads each.
func launchesIn(t *testing.T, paths []string) int {
	t.Helper()
	n := 0
	for _, path := range paths {
		rec, err := archive.Read(path, archive.DefaultLimits())
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		n += kernelLaunches(rec)
	}
	return n
}

func kernelLaunches(rec *recording.Recording) int {
	n := 0
	for i := range rec.Events {
		e := &rec.Events[i]
		if e.Kind == event.Call && int(e.Func) < len(rec.Meta.Functions) &&
			rec.Meta.Functions[e.Func].Base == "cuLaunchKernel" {
			n++
		}
	}
	return n
}

// linesOf counts the JSON lines of calls of a function in a directory of recordings.
func linesOf(t *testing.T, dir, function string) int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl.gz"))
	must.NoError(t, err)
	n := 0
	for _, file := range files {
		f, err := os.Open(file)
		must.NoError(t, err)
		zip, err := gzip.NewReader(f)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		in := json.NewDecoder(zip)
		for {
			var line struct {
				TS         float64
				Kind, Func string
			}
			if err := in.Decode(&line); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if line.Kind == "call" && line.Func == function { // a sample within it has its name as well
				n++
			}
			if age := float64(time.Now().UnixNano())/1e9 - line.TS; age < 0 || age > 3600 {
				t.Fatalf("%s: a line is %v s old", file, age)
			}
		}
		_ = f.Close()
	}
	return n
}

// TestRotation: recordings follow on one another, each launch is in one of them, and what the daemon has begun is
// finished when it stops.
func TestRotation(t *testing.T) {
	dir := t.TempDir()
	v := cudasim.Start(t, cudasim.Options{Lib: "driver"}, "wait",
		"until { launch 10; sleep 2ms }", "print done", "wait")
	d := startDaemon(
		t,
		v.PID,
		append(
			[]string{"--record-dir", dir, "--record-length", "3s", "--record-free-mb", "1", "--record-jsonl"},
			probesOnly...)...)
	v.Go()
	waitFor(t, "three recordings", func() bool { finished, _ := kept(dir); return len(finished) >= 3 })
	if s := d.status().Kept; s == nil || s.Recordings == 0 || s.Bytes == 0 || s.Failed != 0 {
		t.Errorf("status says %+v", s)
	}
	v.Go()
	v.WaitLine("done")
	truth := v.Truth()
	d.stop()
	finished, partial := kept(dir)
	if len(partial) > 0 {
		t.Errorf("%v are left after the end", partial)
	}
	if got, want := launchesIn(t, finished), int(truth.Count("cuLaunchKernel")); got != want {
		t.Errorf("%d recordings hold %d launches, want %d", len(finished), got, want)
	}
	if got, want := linesOf(t, dir, "cuLaunchKernel"), int(truth.Count("cuLaunchKernel")); got != want {
		t.Errorf("JSON lines have %d launches, want %d", got, want)
	}
	v.Go()
	v.Finish()
}

// TestRotationAfterKill9: what was written before is kept, and goes on.
func TestRotationAfterKill9(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	dir := t.TempDir()
	v := cudasim.Start(t, cudasim.Options{Lib: "driver"}, "wait", "until { launch 10; sleep 2ms }", "wait")
	flags := append([]string{"--record-dir", dir, "--record-length", "20s", "--record-free-mb", "1"}, probesOnly...)
	d := startDaemon(t, v.PID, flags...)
	v.Go()
	waitFor(t, "a stretch", func() bool {
		_, partial := kept(dir)
		if len(partial) == 0 {
			return false
		}
		in, err := archive.Inspect(filepath.Join(dir, partial[0]), false)
		return err == nil && in.Manifest.Events() > 0
	})
	must.NoError(t, d.cmd.Process.Signal(syscall.SIGKILL))
	if err := <-d.done; err == nil {
		t.Fatal("a daemon that was killed ended as if it had been asked to")
	}
	again := startDaemon(t, v.PID, flags...)
	waitFor(t, "what was cut off to be kept", func() bool { finished, _ := kept(dir); return len(finished) > 0 })
	again.stop()
	finished, _ := kept(dir)
	if launchesIn(t, finished[:1]) == 0 {
		t.Errorf("%s holds no launch", finished[0])
	}
	v.Go()
	v.Go()
	v.Finish()
}

// TestFlight: on command, what the daemon remembers is on its disk.
func TestFlight(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	v := cudasim.Start(t, cudasim.Options{Lib: "driver"}, "wait", "launch 123", "print done", "wait")
	d := startDaemon(
		t,
		v.PID,
		append([]string{"--record-dir", dir, "--record-length", "0", "--record-free-mb", "1"}, probesOnly...)...)
	v.Go()
	v.WaitLine("done")
	var saved api.Flight
	waitFor(t, "the daemon to save what it remembers", func() (ok bool) {
		var err error
		saved, err = d.client().Save(t.Context(), uint32(v.PID))
		return err == nil
	})
	if len(saved.Paths) != 1 || launchesIn(t, saved.Paths) != 123 {
		t.Errorf("%v: want one recording with 123 launches", saved.Paths)
	}
	must.NoError(t, d.cmd.Process.Signal(syscall.SIGUSR1))
	d.waitLog("saved what is remembered")
	if finished, _ := kept(dir); len(finished) != 2 {
		t.Errorf("after SIGUSR1 there are %d recordings, want 2", len(finished))
	}
	v.Go()
	v.Finish()
}
