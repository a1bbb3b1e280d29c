package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

var nonces atomic.Int64

// nonce is a word that only this test's processes have on their command line: other programs of this machine are left
// alone.
func nonce() string { return fmt.Sprintf("found-%d-%d", os.Getpid(), nonces.Add(1)) }

// discover starts a daemon that finds the processes with a word on their command line.
func discover(t *testing.T, word string, flags ...string) *daemon {
	t.Helper()
	d := launchDaemon(
		t,
		append(
			[]string{"--allow", "name=victim*,cmdline=*" + word + "*", "--no-inject", "--gpu", "continuous"},
			flags...)...)
	d.waitLog("ready")
	return d
}

// target returns the target with a pid; nil where there is none.
func (d *daemon) target(pid int) *api.Target {
	d.t.Helper()
	for _, t := range d.targets() {
		if int(t.PID) == pid {
			return &t
		}
	}
	return nil
}

// targets asks by a connection that ends: a test that waits asks often.
func (d *daemon) targets() []api.Target {
	d.t.Helper()
	client, err := api.Dial(d.socket)
	must.NoError(d.t, err)
	defer client.Close()
	targets, err := client.Targets(context.Background())
	must.NoError(d.t, err)
	return targets
}

func (d *daemon) waitState(pid int, state api.TargetState) *api.Target {
	d.t.Helper()
	var last *api.Target
	waitFor(d.t, fmt.Sprintf("pid %d to be %s", pid, state), func() bool {
		last = d.target(pid)
		return last != nil && last.State == state
	})
	return last
}

// TestDiscovery: without a pid the daemon watches what uses a GPU, before and after its start, with the tree that it is
// a part of, and nothing that rules leave out.
func TestDiscovery(t *testing.T) {
	needs.Root(t, "it loads BPF programs and attaches probes")
	word := nonce()
	early := cudasim.Start(t, cudasim.Options{Lib: "driver"}, "print "+word, "wait", "launch 10", "wait")
	denied := cudasim.Start(t, cudasim.Options{Lib: "driver"}, "print "+word+"-denied", "wait")
	d := discover(t, word, "--deny", "cmdline=*"+word+"-denied*")
	d.waitState(early.PID, api.Watching)

	late := cudasim.Start(t, cudasim.Options{Lib: "driver", NoReady: true, Args: []string{"--late"}},
		"print "+word, "print up", "wait", "dlopen-now", "launch 1", "wait", "launch 99", "print done",
		"wait")
	late.WaitLine("up")
	if d.target(late.PID) != nil {
		t.Error("a program that has mapped no driver is watched")
	}
	late.Go()
	found := d.waitState(late.PID, api.Watching)
	if !found.Found || found.Cgroup == "" {
		t.Errorf("target %+v: it is not said that it was found, and in which control group it is", found)
	}
	late.Go()
	late.WaitLine("done")
	rec := d.recording(late.PID)
	if n := seen(rec, late.PID)[row{"driver", "cuLaunchKernel"}]; n < 99 {
		t.Errorf("%d launches are recorded, of 99 after it was watched", n)
	}
	for _, l := range rec.Meta.Libraries {
		if took := time.Duration(l.Probed - l.Mapped); took > time.Second {
			t.Errorf("%s was probed %v after it was mapped", l.Path, took)
		} else {
			t.Logf("%s was probed %v after it was mapped", l.Path, took)
		}
	}
	if d.target(denied.PID) != nil {
		t.Error("a process is watched although it is denied")
	}
	found1, err := d.client().Candidates(t.Context())
	must.NoError(t, err)
	i := slices.IndexFunc(found1, func(c api.Candidate) bool { return int(c.PID) == denied.PID })
	if i < 0 || !strings.Contains(found1[i].Refused, "denied by cmdline=") || found1[i].Target != 0 {
		t.Errorf("candidates %+v do not say that %d is denied", found1, denied.PID)
	}
	if i = slices.IndexFunc(found1, func(c api.Candidate) bool { return int(c.PID) == late.PID }); i < 0 ||
		int(found1[i].Target) != late.PID ||
		found1[i].Refused != "" {
		t.Errorf("candidates %+v do not say that %d is watched", found1, late.PID)
	}
	d.stop()
}

// TestDiscoveryOfATree: where children are those that use the GPU, their parent of the same program is the target: one.
func TestDiscoveryOfATree(t *testing.T) {
	needs.Root(t, "it loads BPF programs and attaches probes")
	word := nonce()
	d := discover(t, word)
	v := cudasim.Start(t, cudasim.Options{Lib: "driver", NoReady: true, Args: []string{"--late"}},
		"print "+word, "fork nowait { dlopen-now; launch 5; sleep 10s }",
		"fork nowait { dlopen-now; launch 5; sleep 10s }", "wait")
	d.waitState(v.PID, api.Watching)
	waitFor(t, "the server and its two workers", func() bool { return len(d.target(v.PID).Processes) == 3 })
	if s := d.status().Discovery; s == nil || s.Watched != 1 {
		t.Errorf("status counts %+v, want one program", s)
	}
}

// TestDiscoveryForgets: an ended target is served until its recording has expired.
func TestDiscoveryForgets(t *testing.T) {
	needs.Long(t)
	needs.Root(t, "it loads BPF programs and attaches probes")
	word := nonce()
	d := discover(t, word, "--keep", "3s")
	v := cudasim.Start(t, cudasim.Options{Lib: "driver"}, "print "+word, "launch 5", "wait")
	d.waitState(v.PID, api.Watching)
	v.Go()
	v.Finish()
	d.waitState(v.PID, api.Exited)
	if rec := d.recording(v.PID); len(rec.Meta.Processes) != 1 {
		t.Errorf("the recording of an ended target names %d processes", len(rec.Meta.Processes))
	}
	waitFor(t, "the target to be forgotten", func() bool { return d.target(v.PID) == nil })
}

// TestDiscoveryAcrossNamespaces: a process in pid and mount namespaces of its own, as in a container, is found, and its
// parent outside of them is no part of it.
func TestDiscoveryAcrossNamespaces(t *testing.T) {
	needs.Root(t, "it loads BPF programs and attaches probes")
	if _, err := exec.LookPath("unshare"); err != nil {
		t.Skip("needs unshare")
	}
	word := nonce()
	d := discover(t, word)
	v := cudasim.Start(
		t,
		cudasim.Options{
			Program: []string{"unshare", "--fork", "--kill-child", "--pid", "--mount-proc", cudasim.Build(t).Victim},
			Lib:     "driver",
			NoReady: true,
		},
		"print "+word,
		"print up",
		"until { launch 5; sync; sleep 5ms }",
		"wait",
	)
	v.WaitLine("up")
	var found *api.Target
	waitFor(t, "the process to be watched", func() bool {
		for _, target := range d.targets() {
			if target.State == api.Watching && strings.Contains(target.Cmdline, word) {
				found = &target
			}
		}
		return found != nil
	})
	if found.NSPID == 0 || int(found.PID) == v.PID || found.Comm != "victim" {
		t.Errorf("target %d (%d inside) called %s: want the program, not unshare (%d)",
			found.PID, found.NSPID, found.Comm, v.PID)
	}
}
