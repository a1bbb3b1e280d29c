package doctor

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/feature"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// whole is a machine on which everything is there.
func whole() *machine {
	host := feature.Host{InitialPIDNS: feature.Yes, Lockdown: "none", Paranoid: 4}
	for name := range uses {
		host.Findings = append(host.Findings, feature.Finding{Name: name, Answer: feature.Yes})
	}
	return &machine{
		root: fstest.MapFS{
			"proc/sys/kernel/osrelease":         {Data: []byte("6.14.0-generic\n")},
			"proc/sys/kernel/yama/ptrace_scope": {Data: []byte("1\n")},
			"proc/self/status":                  {Data: []byte("Name:\tx\nSeccomp:\t0\n")},
			"proc/pressure/memory":              {Data: []byte("some avg10=0.00")},
			"proc/driver/nvidia/version": {
				Data: []byte("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun\nGCC version: 13"),
			},
			"dev/nvidia0":                        {},
			"sys/kernel/tracing/events/sched/id": {},
			"sys/fs/cgroup/cgroup.controllers":   {},
		},
		perf: func(event) error { return nil },
		host: host,
	}
}

func find(t *testing.T, d *Diagnosis, name string) check {
	t.Helper()
	for _, s := range d.Sections {
		for _, c := range s.Checks {
			if strings.HasPrefix(c.Name, name) {
				return c
			}
		}
	}
	t.Fatalf("nothing was checked that is called %s", name)
	return check{}
}

func TestNothingIsMissing(t *testing.T) {
	m := whole()
	d := m.diagnose()
	if !d.Works || d.ExitCode != 0 || d.Count(stateMissing)+d.Count(stateLimited) != 0 {
		t.Errorf("it is %+v", d)
	}
	if c := find(t, d, "GPU driver"); c.Found != "NVIDIA UNIX x86_64 Kernel Module 580.65.06 Sun" {
		t.Errorf("the driver is %q", c.Found)
	}
}

// TestWhatIsMissing: each thing that can be missing has its state, what is lost, and what to do.
func TestWhatIsMissing(t *testing.T) {
	no := func(name feature.Name) func(*machine) {
		return func(m *machine) {
			for i := range m.host.Findings {
				if f := &m.host.Findings[i]; f.Name == name {
					f.Answer, f.Err = feature.No, fmt.Errorf("it is %w", ebpf.ErrNotSupported)
				}
			}
		}
	}
	without := func(name string) func(*machine) { return func(m *machine) { delete(m.root.(fstest.MapFS), name) } }
	for name, c := range map[string]struct {
		change func(*machine)
		check  string
		state  checkState
		works  bool
		code   int
	}{
		"BTF":          {no(feature.BTF), "BTF (", stateMissing, false, 5},
		"ring buffers": {no(feature.RingBuffer), "BPF ring", stateMissing, false, 5},
		"multi":        {no(feature.UprobeMulti), "uprobe_multi", stateLimited, true, 0},
		"sessions":     {no(feature.UprobeSession), "uprobe sessions", stateLimited, true, 0},
		"requests":     {no(feature.SocketLength), "tracepoints of socket", stateLimited, true, 0},
		"old kernel": {func(m *machine) {
			m.root.(fstest.MapFS)["proc/sys/kernel/osrelease"].Data = []byte("5.4.0")
		}, "Linux", stateLimited, true, 0},
		"perf": {func(m *machine) {
			m.perf = func(event) error { return unix.EACCES }
		}, "CPU samples", stateLimited, true, 0},
		"tracefs":  {without("sys/kernel/tracing/events/sched/id"), "tracefs", stateLimited, true, 0},
		"cgroups":  {without("sys/fs/cgroup/cgroup.controllers"), "cgroups", stateLimited, true, 0},
		"pressure": {without("proc/pressure/memory"), "pressure", stateLimited, true, 0},
		"lockdown": {func(m *machine) {
			m.host.Lockdown = "confidentiality"
		}, "lockdown", stateMissing, false, 5},
		"pid namespace": {func(m *machine) {
			m.host.InitialPIDNS = feature.No
		}, "initial pid", stateMissing, false, 5},
		"yama": {func(m *machine) {
			m.root.(fstest.MapFS)["proc/sys/kernel/yama/ptrace_scope"].Data = []byte("3")
		}, "kernel.yama", stateLimited, true, 0},
		"driver": {without("proc/driver/nvidia/version"), "GPU driver", stateAbsent, true, 0},
		"Nsight Systems": {func(m *machine) {
			m.root.(fstest.MapFS)["proc/77/comm"] = &fstest.MapFile{Data: []byte("nsys\n")}
		}, "other prof", stateLimited, true, 0},
		"no probes at all": {func(m *machine) {
			no(feature.UprobeMulti)(m)
			no(feature.UprobeSession)(m)
		}, "probes of", stateMissing, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := whole()
			c.change(m)
			d := m.diagnose()
			got := find(t, d, c.check)
			if got.State != c.state || got.Lost == "" && c.check != "Linux" {
				t.Errorf("it is %+v, want %s with what is lost", got, c.state)
			}
			if got.State != stateAbsent && got.Fix == "" {
				t.Errorf("nothing says what to do about %+v", got)
			}
			if d.Works != c.works || d.ExitCode != c.code {
				t.Errorf("works %v with code %d: %s", d.Works, d.ExitCode, d.Problem)
			}
		})
	}
}

func TestStateOfATarget(t *testing.T) {
	for text, want := range map[string]int{
		"Seccomp:\t0\nTracerPid:\t0\n":                     0,
		"Seccomp:\t1\n":                                    1,
		"Seccomp:\t2\nTracerPid:\t12\n":                    1,
		"TracerPid:\t12\nx86_Thread_features:\tshstk\n":    2,
		"Name:\tevil\\nTracerPid:\t9\nSeccomp:\tgarbage\n": 0,
	} {
		limited := 0
		for _, c := range stateChecks([]byte(text)) {
			if c.State == stateLimited {
				limited++
			}
		}
		if limited != want {
			t.Errorf("%q has %d limits, want %d", text, limited, want)
		}
	}
}

func TestThisProcess(t *testing.T) {
	pid := uint32(os.Getpid())
	d, err := Examine(Options{
		PID: int(pid),
		Agents: []recording.AgentStatus{
			{Agent: recording.Agent{PID: pid, State: "refused", Detail: "another profiler holds CUPTI"}},
		},
	})
	must.NoError(t, err)
	if c := find(t, d, "CUPTI"); c.State != stateLimited || !strings.Contains(c.Found, "another profiler") {
		t.Errorf("of CUPTI it says %+v", c)
	}
	if c := find(t, d, "namespaces"); c.Found != "the same as here" {
		t.Errorf("of namespaces it says %+v", c)
	}
	if _, err := Examine(Options{PID: 1 << 30}); err == nil || errors.Is(err, fs.ErrPermission) {
		t.Errorf("a process that cannot be is %v", err)
	}
}

func TestText(t *testing.T) {
	m := whole()
	m.root.(fstest.MapFS)["proc/driver/nvidia/version"].Data = []byte(
		"NVRM version: \x1b[31m" + strings.Repeat("long words ", 20),
	)
	d := m.diagnose()
	d.Fail(errors.New("no such process"))
	var b bytes.Buffer
	must.NoError(t, Text(&b, d, 60, false))
	for line := range strings.Lines(b.String()) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 60 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if strings.Contains(b.String(), "\x1b") || !strings.Contains(b.String(), "no such process") {
		t.Errorf("it is\n%s", &b)
	}
}
