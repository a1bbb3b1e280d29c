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
	waitFor(t, "libcuda's text to be that of its file",
		func() bool { return cudasim.ChangedText(t, v.PID, "libcuda.so") == 0 })
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
func windowEnds(rec *recording.Recording, pid int) (ends []string) {
	for _, w := range closedWindows(rec, pid) {
		ends = append(ends, w.End)
	}
	return ends
}

func isOpen(w recording.GPUWindow) bool { return w.Activity && w.End == "open" }

// Where it is killed nothing holds threads any more: no window opens, and one that is open leaves CUPTI in the process,
// idle, until the next daemon of the same version takes it out.
func TestLinkHolderKilledBesideAnAgent(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	for _, c := range []struct {
		name  string
		flags []string
		await func(d *daemon, pid int)
		may   func(more []string) bool // whether windows may end so after that
	}{
		{
			"between windows",
			inWindows("20ms", "30m"),
			func(d *daemon, pid int) { d.waitWindows(pid, 1) },
			func(more []string) bool { return len(more) == 0 },
		},
		{
			"in a window",
			[]string{"--gpu", "continuous"},
			func(d *daemon, pid int) { d.waitOpen(pid) },
			func(more []string) bool { return slices.Equal(more, []string{"kept"}) },
		},
		{
			"as windows come and go",
			inWindows("20ms", "60ms"),
			func(d *daemon, pid int) { d.waitWindows(pid, 2) },
			func(more []string) bool {
				more = slices.DeleteFunc(slices.Clone(more), func(end string) bool { return end == "finalized" })
				return len(more) == 0 || slices.Equal(more, []string{"kept"})
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v := cudasim.Start(t, cudasim.Options{Level: "counts"}, graphLoop...)
			d := startDaemon(t, v.PID, c.flags...)
			c.await(d, v.PID)
			ended := len(windowEnds(d.fetch(v.PID), v.PID))
			if err := syscall.Kill(d.linkHolder(), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			d.waitAgent(v.PID, "refused")
			before := v.Truth().Count("cuGraphLaunch")
			waitFor(t, "the target to go on", func() bool { return v.Truth().Count("cuGraphLaunch") > before+1000 })
			const stays = "CUPTI stays in the process, idle"
			var ends []string
			kept := 0
			waitFor(t, "what is said of the agent", func() bool {
				rec := d.fetch(v.PID)
				a := agentIn(rec, v.PID)
				ends, kept = windowEnds(rec, v.PID), 0
				if len(ends) > 0 && ends[len(ends)-1] == "kept" { // on a slow machine also between windows
					kept = 1
				}
				return !slices.ContainsFunc(rec.Meta.GPU.Windows, isOpen) &&
					strings.Contains(a.Detail, "restart the daemon") && strings.Contains(a.Detail, stays) == (kept > 0)
			})
			if more := ends[ended:]; !c.may(more) {
				t.Errorf("after %v the windows ended %v", ends[:ended], more)
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
				func() bool { return slices.Contains(windowEnds(d.fetch(v.PID), v.PID), "finalized") })
			d.stop()
			unharmed(t, v)
		})
	}
}
