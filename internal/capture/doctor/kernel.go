package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/feature"
	"github.com/inferscope/inferscope/internal/capture/procfile"
)

// oldest is the first kernel that has all that is needed.
var oldest = [2]int{5, 15}

// use is what a feature of the kernel is for.
type use struct {
	state checkState // of a kernel without it
	lost  string
	fix   string
}

var uses = map[feature.Name]use{
	feature.BTF: {
		stateMissing,
		"everything: BPF programs are fitted to the kernel by it",
		"use a kernel built with CONFIG_DEBUG_INFO_BTF=y",
	},
	feature.RingBuffer:  {stateMissing, "everything: events come through them", "use Linux 5.15 or newer"},
	feature.TaskStorage: {stateMissing, "everything: calls are timed with it", "use Linux 5.15 or newer"},
	feature.Tracepoint: {
		stateMissing,
		"everything: processes and their switches are followed by them",
		"use Linux 5.15 or newer",
	},
	feature.PerfCookie: {stateLimited, "the only way to probe on kernels before 6.6", "use Linux 5.15 or newer"},
	feature.UprobeMulti: {
		stateLimited,
		"attaching takes seconds and CAP_SYS_ADMIN: each function is probed by a perf event of its own",
		"use Linux 6.6 or newer",
	},
	feature.UprobeSession: {
		stateLimited,
		"a call that is timed costs a little more: entries and returns are probed apart",
		"use Linux 6.13 or newer",
	},
	feature.SocketLength: {
		stateLimited,
		"HTTP requests cost more, by how much is not measured: the returns of socket functions are probed, or those of " +
			"all system calls while a process is followed",
		"use Linux 6.3 or newer",
	},
}

// kernel looks at what the kernel has.
func (m *machine) kernel() []check {
	out := []check{m.release()}
	for _, f := range m.host.Findings {
		out = append(out, featureCheck(f))
	}
	out = append(out, m.uprobes(), m.sampling(), m.cycles(), m.tracefs(), m.cgroups(), m.pressure(), m.lockdown())
	return out
}

func featureCheck(f feature.Finding) check {
	c := check{Name: string(f.Name), State: stateOK}
	if f.Answer == feature.Yes {
		return c
	}
	u := uses[f.Name]
	c.State, c.Lost, c.Fix, c.Found = u.state, u.lost, u.fix, f.Err.Error()
	if f.Answer == feature.Unknown {
		c.State = stateUnknown
		if denied(f.Err) {
			c.Fix = "run it as root; in a container, let the seccomp profile allow bpf"
		}
	}
	return c
}

func denied(err error) bool { return errors.Is(err, fs.ErrPermission) }

func (m *machine) release() check {
	c := check{Name: "Linux"}
	text, err := m.read("proc/sys/kernel/osrelease")
	if err != nil {
		c.State, c.Found = stateUnknown, err.Error()
		return c
	}
	c.Found = strings.TrimSpace(text)
	var major, minor int
	if _, err := fmt.Sscanf(c.Found, "%d.%d", &major, &minor); err != nil {
		c.State = stateUnknown
		return c
	}
	c.State = stateOK
	if major < oldest[0] || major == oldest[0] && minor < oldest[1] {
		// Features are found by trying, so that a distribution's kernel with patches taken back may still do.
		c.State, c.Lost, c.Fix = stateLimited, "this version is not tested", "use Linux 5.15 or newer"
	}
	return c
}

// uprobes looks at how calls would be probed.
func (m *machine) uprobes() check {
	multi, session, perf := m.host.Of(feature.UprobeMulti),
		m.host.Of(feature.UprobeSession), m.host.Of(feature.PerfCookie)
	switch {
	case session.Answer == feature.Yes:
		return check{Name: "probes of CUDA calls", State: stateOK, Found: "session"}
	case multi.Answer == feature.Yes:
		return check{Name: "probes of CUDA calls", State: stateOK, Found: "multi"}
	case perf.Answer == feature.Yes && m.has("sys/bus/event_source/devices/uprobe/type"):
		return check{Name: "probes of CUDA calls", State: stateOK, Found: "perf"}
	case perf.Answer == feature.Yes:
		return check{
			Name: "probes of CUDA calls", State: stateMissing, Found: "no /sys/bus/event_source/devices/uprobe",
			Lost: "CUDA calls",
			Fix:  "use a kernel with CONFIG_UPROBE_EVENTS=y, and let /sys be seen in the container",
		}
	}
	return check{Name: "probes of CUDA calls", State: stateUnknown, Lost: "CUDA calls", Fix: "see the features above"}
}

// event is a perf event that is tried.
type event struct {
	kind   uint32
	config uint64
}

// openEvent opens an event of CPU 0 and closes it again.
func openEvent(e event) error {
	attr := unix.PerfEventAttr{Type: e.kind, Config: e.config, Sample: 10_000_000, Bits: unix.PerfBitDisabled}
	attr.Size = uint32(unsafe.Sizeof(attr))
	fd, err := unix.PerfEventOpen(&attr, -1, 0, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func (m *machine) sampling() check {
	c := check{Name: "CPU samples (perf_event_open)", State: stateOK}
	if err := m.perf(event{unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_CPU_CLOCK}); err != nil {
		c.State, c.Found = stateLimited, err.Error()
		c.Lost = "Python and C++ code behind idle time: no stacks are sampled; new libraries are found by looking " +
			"once a second"
		c.Fix = "grant CAP_PERFMON; in a container, let the seccomp profile allow perf_event_open"
	}
	return c
}

func (m *machine) cycles() check {
	c := check{Name: "hardware cycles", State: stateOK}
	if err := m.perf(event{unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_CPU_CYCLES}); err != nil {
		c.State, c.Found, c.Lost = stateAbsent, err.Error(), "--cpu-cycles; samples by the CPU clock are the default"
		c.Fix = "virtual machines often have none: ask for a virtual PMU"
	}
	return c
}

func (m *machine) tracefs() check {
	c := check{Name: "tracefs", State: stateOK}
	for _, dir := range []string{"sys/kernel/tracing", "sys/kernel/debug/tracing"} {
		if m.has(dir + "/events/sched") {
			c.Found = "/" + dir
			return c
		}
	}
	c.State, c.Found = stateLimited, "not mounted, or not to be read"
	c.Lost = "memory of the unwinder is freed a minute after a process has ended instead of at once"
	c.Fix = "mount -t tracefs tracefs /sys/kernel/tracing, or give the container /sys/kernel/tracing"
	return c
}

func (m *machine) cgroups() check {
	c := check{Name: "cgroups", State: stateOK, Found: "version 2"}
	switch {
	case m.has("sys/fs/cgroup/cgroup.controllers"):
	case m.has("sys/fs/cgroup/cpu"), m.has("sys/fs/cgroup/cpu,cpuacct"):
		c.Found = "version 1"
	default:
		c.State, c.Found, c.Lost, c.Fix = stateLimited, "/sys/fs/cgroup is empty", "CPU quotas (throttling) and pods", "mount it, or give the container /sys/fs/cgroup"
	}
	return c
}

func (m *machine) pressure() check {
	c := check{Name: "pressure stall information", State: stateOK}
	if _, err := m.read("proc/pressure/memory"); err != nil {
		c.State, c.Found, c.Lost, c.Fix = stateLimited, err.Error(), "stalls for want of memory", "boot with psi=1"
	}
	return c
}

func (m *machine) lockdown() check {
	c := check{Name: "lockdown", State: stateOK, Found: m.host.Lockdown}
	switch c.Found {
	case "":
		c.Found = "none"
	case "confidentiality":
		c.State, c.Lost, c.Fix = stateMissing, "everything: no BPF program may read memory", "boot without lockdown=confidentiality; lockdown=integrity is no obstacle"
	}
	return c
}

// rights looks at what this process may do.
func (m *machine) rights() []check {
	out := make([]check, 0, 8)
	lacks := map[string]feature.Need{}
	for _, n := range m.host.Capabilities.Missing() {
		lacks[n.For] = n
	}
	for _, n := range feature.Needs() {
		c := check{Name: capabilities(n.Needs), State: stateOK}
		missing, is := lacks[n.For]
		switch {
		case !m.host.Capabilities.Known:
			c.State, c.Found = stateUnknown, "/proc/self/status cannot be read"
		case is:
			c.State, c.Lost = stateMissing, n.For
			if n.Optional {
				c.State = stateLimited
			}
			c.Fix = "run it with sudo, or grant " + capabilities(missing.Needs)
		}
		if strings.Contains(n.For, "before 6.6") && c.State == stateLimited &&
			m.host.Of(feature.UprobeMulti).Answer == feature.Yes {
			c.State, c.Found = stateAbsent, "not needed on this kernel"
		}
		out = append(out, c)
	}
	return append(out, m.paranoid(), m.yama(), m.ownSeccomp(), m.namespace())
}

func capabilities(list []feature.Capability) string {
	names := make([]string, 0, len(list))
	for _, c := range list {
		names = append(names, c.String())
	}
	return strings.Join(names, ", ")
}

func (m *machine) paranoid() check {
	c := check{Name: "kernel.perf_event_paranoid", State: stateOK, Found: strconv.Itoa(m.host.Paranoid)}
	switch {
	case m.host.Paranoid == -2:
		c.State, c.Found = stateUnknown, "cannot be read"
	case m.host.Paranoid > 0 && m.host.Capabilities.Known && !m.host.Capabilities.Has(feature.Perfmon):
		c.State, c.Lost, c.Fix = stateLimited, "CPU samples without CAP_PERFMON", "grant CAP_PERFMON; the setting "+
			"itself may stay"
	}
	return c
}

func (m *machine) yama() check {
	c := check{Name: "kernel.yama.ptrace_scope", State: stateOK}
	text, err := m.read("proc/sys/kernel/yama/ptrace_scope")
	if err != nil {
		c.Found = "no Yama"
		return c
	}
	c.Found = strings.TrimSpace(text)
	if c.Found == "3" {
		c.State, c.Lost, c.Fix = stateLimited, "GPU activity of programs that run already: the agent cannot be loaded",
			"start programs with `inferscope run`, or boot with another setting: 3 stays until then"
	}
	return c
}

func (m *machine) ownSeccomp() check {
	c := check{Name: "seccomp of this process", State: stateOK, Found: "none"}
	status, err := m.read("proc/self/status")
	if err != nil {
		c.State, c.Found = stateUnknown, err.Error()
		return c
	}
	if procfile.Status(status).Field("Seccomp") == "2" {
		c.Found = "filtered"
	}
	return c // what it forbids shows above
}

func (m *machine) namespace() check {
	c := check{Name: "initial pid namespace", State: stateOK}
	switch m.host.InitialPIDNS {
	case feature.No:
		c.State, c.Lost, c.Fix = stateMissing, "everything: the kernel reports pids of the host", "run it on the host, or its container with --pid=host (Kubernetes: hostPID: true)"
	case feature.Unknown:
		c.State = stateUnknown
	}
	return c
}
