package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// TestTheDaemonKeepsWhatItNeeds: started by root, the daemon and all that it starts have the capabilities that are
// named in docs/gpu-agent.md and no other, and the process that keeps recordings has none.
func TestTheDaemonKeepsWhatItNeeds(t *testing.T) {
	d := launchDaemon(t, "--on-request", "--record-dir", t.TempDir())
	d.waitLog("ready")
	const named = "000001c400880004" // BPF, PERFMON, SYS_PTRACE, DAC_READ_SEARCH, CHECKPOINT_RESTORE, SYS_NICE, SYSLOG
	none := strings.Repeat("0", len(named))
	pids := []int{d.cmd.Process.Pid}
	waitFor(t, "the processes that the daemon starts", func() bool {
		pids = append(pids[:1], childrenOf(t, pids[0])...)
		return len(pids) >= 3 && slices.ContainsFunc(pids, func(pid int) bool { return rights(pid).permitted == none })
	})
	kept := 0
	for _, pid := range pids {
		have := rights(pid)
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		want := confinement{permitted: named, bounding: named, privileges: "1", seccomp: "2"}
		if strings.HasPrefix(string(comm), "iscope-record") {
			// without CAP_SETPCAP a bounding set stays; no_new_privs keeps it shut
			want.permitted, want.bounding = none, named
			kept++
		}
		if have != want {
			t.Errorf("%s has %+v, want %+v", comm, have, want)
		}
	}
	if kept != 1 {
		t.Errorf("%d processes keep recordings", kept)
	}
	d.stop()
}

// TestAUserWithTheNamedCapabilities: a daemon that is no root, with the five capabilities that are named in
// deploy/kubernetes/daemonset.yaml and no other, sees each call and each kernel of a process of another user.
func TestAUserWithTheNamedCapabilities(t *testing.T) {
	const daemonUser, targetUser = 64001, 64002
	v := cudasim.Start(t, cudasim.Options{Lib: "driver", User: targetUser}, busy,
		"launch 700 kernel=counted_us3", "sync", "print done", busy)
	d := launchDaemonAs(t, &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: daemonUser, Gid: daemonUser},
		AmbientCaps: []uintptr{
			unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_SYS_PTRACE, unix.CAP_DAC_READ_SEARCH, unix.CAP_CHECKPOINT_RESTORE,
		},
	}, "--pid", fmt.Sprint(v.PID), "--gpu", "continuous")
	d.waitLog("ready")
	const five = "000001c000080004"
	if have := rights(d.cmd.Process.Pid); have.permitted != five || have.privileges != "1" || have.seccomp != "2" {
		t.Errorf("the daemon has %+v, want the capabilities %s", have, five)
	}
	if s := d.status(); len(s.Targets) != 1 || s.Targets[0].UID != targetUser {
		t.Errorf("it watches %+v", s.Targets)
	}
	a := d.waitOpen(v.PID)
	v.Go()
	v.WaitLine("done")
	rec := d.waitKernels(v.PID, "counted", 700)
	truth := v.Truth()
	equalKernels(t, kernelsIn(rec, v.PID, "counted"), kernelsOf(truth, "counted", a.Joined, now()))
	launchesOf(t, rec, truth, kernelsOf(truth, "counted", a.Joined, now()))
	d.stop()
	unharmed(t, v)
}

type confinement struct{ permitted, bounding, privileges, seccomp string }

func rights(pid int) confinement {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	field := func(name string) string {
		m := regexp.MustCompile(`(?m)^` + name + `:\s*(\S+)$`).FindSubmatch(text)
		if m == nil {
			return ""
		}
		return string(m[1])
	}
	return confinement{field("CapPrm"), field("CapBnd"), field("NoNewPrivs"), field("Seccomp")}
}

// childrenOf are what all threads of a process have started.
func childrenOf(t *testing.T, pid int) []int {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil || len(lists) == 0 {
		t.Skip("this kernel does not list children")
	}
	var out []int
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		for f := range strings.FieldsSeq(string(text)) {
			if child, err := strconv.Atoi(f); err == nil {
				out = append(out, child)
			}
		}
	}
	return out
}
