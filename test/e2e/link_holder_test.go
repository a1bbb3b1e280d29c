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

// Where it is killed while windows are recorded no other opens: nobody sees any more which threads launch CUDA graphs.
func TestLinkHolderKilledBesideAnAgent(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	v := cudasim.Start(t, cudasim.Options{Level: "counts"}, graphLoop...)
	d := startDaemon(t, v.PID, inWindows("20ms", "60ms")...)
	d.waitWindows(v.PID, 2)
	if err := syscall.Kill(d.linkHolder(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if a := d.waitAgent(v.PID, "refused"); !strings.Contains(a.Detail, "restart the daemon") {
		t.Errorf("of the agent it is said %q", a.Detail)
	}
	before := v.Truth().Count("cuGraphLaunch")
	waitFor(t, "the target to go on", func() bool { return v.Truth().Count("cuGraphLaunch") > before+10 })
	for _, w := range closedWindows(d.fetch(v.PID), v.PID) {
		if w.End != "finalized" {
			t.Errorf("a window ended %q", w.End)
		}
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	if code := d.exitCode(); code != 1 {
		t.Errorf("it ended with %d, want 1", code)
	}
	waitFor(t, "the end of the agent's thread", func() bool { return agentThreads(v.PID) == 0 })
	unharmed(t, v)
}
