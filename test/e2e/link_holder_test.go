package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/cudaapi"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// linkHolder finds the process that holds the daemon's probes.
func (d *daemon) linkHolder() int {
	d.t.Helper()
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", d.cmd.Process.Pid))
	for _, task := range tasks {
		children, _ := os.ReadFile(task)
		for _, child := range strings.Fields(string(children)) {
			line, _ := os.ReadFile("/proc/" + child + "/cmdline")
			if pid, err := strconv.Atoi(child); err == nil &&
				strings.Contains(string(line), uprobe.LinkHolderArgument) {
				return pid
			}
		}
	}
	d.t.Fatal("the daemon has no link holder")
	return 0
}

// Where the process that holds the probes is killed, nothing stays in the target, and the daemon says what is missing.
func TestLinkHolderKilled(t *testing.T) {
	t.Parallel()
	v := cudasim.Start(t, cudasim.Options{Lib: "driver"}, "until { launch 10; sync; sleep 1ms }")
	d := startDaemon(t, v.PID, probesOnly...)
	linkHolder := d.linkHolder()
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", linkHolder))
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "Rss") {
			t.Log("the link holder's ", strings.Join(strings.Fields(line), " "))
		}
	}
	if err := syscall.Kill(linkHolder, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.waitLog("no CUDA call is seen any more")
	waitFor(t, "libcuda's text to be that of its file", func() bool { return changedText(t, v.PID, "libcuda.so") == 0 })
	rec := d.recording(v.PID)
	if !slices.ContainsFunc(rec.Meta.Losses, func(l loss.Loss) bool {
		return l.Reason == loss.ProbeFailed && l.Count > 0 &&
			strings.Contains(l.Detail, uprobe.ErrLinkHolderGone.Error())
	}) {
		t.Errorf("the losses do not say that the probes are gone: %+v", rec.Meta.Losses)
	}
	if !slices.ContainsFunc(d.status().Sources, func(s recording.Source) bool {
		return s.Name == cudaapi.Name && s.State == "unavailable" && strings.Contains(s.Detail, "restart the daemon")
	}) {
		t.Errorf("status does not say it: %+v", d.status().Sources)
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	if code := d.exitCode(); code != 1 {
		t.Errorf("it ended with %d, want 1", code)
	}
	unharmed(t, v)
}

// windowEnds returns how the windows of a process ended so far.
func windowEnds(d *daemon, pid int) (ends []string) {
	for _, w := range closedWindows(d.fetch(pid), pid) {
		ends = append(ends, w.End)
	}
	return ends
}

// Where it is killed nothing holds threads any more: no window opens, and one that is open leaves CUPTI in the process,
// idle, until the next daemon takes it out.
func TestLinkHolderKilledBesideAnAgent(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	for _, c := range []struct {
		name  string
		flags []string
		await func(d *daemon, pid int)
		more  []string // how windows end after that
	}{
		{"between windows", inWindows("20ms", "30m"), func(d *daemon, pid int) { d.waitWindows(pid, 1) }, nil},
		{
			"in a window",
			[]string{"--gpu", "continuous"},
			func(d *daemon, pid int) { d.waitOpen(pid) },
			[]string{"kept"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v := cudasim.Start(t, cudasim.Options{Level: "counts"}, graphLoop...)
			d := startDaemon(t, v.PID, c.flags...)
			c.await(d, v.PID)
			want, kept := append(windowEnds(d, v.PID), c.more...), 0
			if len(want) > 0 && want[len(want)-1] == "kept" { // on a slow machine also the first one between windows
				kept = 1
			}
			if err := syscall.Kill(d.linkHolder(), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			const stays = "CUPTI stays in the process, idle"
			waitFor(t, "what is said of the agent", func() bool {
				a := agentIn(d.fetch(v.PID), v.PID)
				return a.State == "refused" && strings.Contains(a.Detail, "restart the daemon") &&
					strings.Contains(a.Detail, stays) == (kept > 0)
			})
			before := v.Truth().Count("cuGraphLaunch")
			waitFor(t, "the target to go on", func() bool { return v.Truth().Count("cuGraphLaunch") > before+1000 })
			if ends := windowEnds(d, v.PID); !slices.Equal(ends, want) {
				t.Errorf("the windows ended %v, want %v", ends, want)
			}
			_ = d.cmd.Process.Signal(syscall.SIGTERM)
			if code := d.exitCode(); code != 1 {
				t.Errorf("it ended with %d, want 1", code)
			}
			if n := strings.Count(d.log.String(), stays); n != kept {
				t.Errorf("the log says %d times that CUPTI stays, want %d", n, kept)
			}
			for _, text := range []string{"cannot be held", "not taken away", "cannot be armed"} {
				if strings.Contains(d.log.String(), text) {
					t.Errorf("the log says %q", text)
				}
			}
			waitFor(t, "the end of all threads but CUPTI's", func() bool { return agentThreads(v.PID) == kept })
			d = startDaemon(t, v.PID, inWindows("20ms", "60ms")...)
			waitFor(t, "a window that is finalized",
				func() bool { return slices.Contains(windowEnds(d, v.PID), "finalized") })
			d.stop()
			unharmed(t, v)
		})
	}
}
