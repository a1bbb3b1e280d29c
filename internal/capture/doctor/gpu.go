package doctor

import (
	"fmt"
	"io/fs"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/agent"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
)

// gpu looks at the driver and at who else measures it.
func (m *machine) gpu() []check {
	out := []check{m.driver(), m.devices(), m.agentImage()}
	return append(out, m.profilers()...)
}

func (m *machine) driver() check {
	c := check{Name: "GPU driver", State: stateOK}
	text, err := m.read("proc/driver/nvidia/version")
	switch {
	case err == nil:
		c.Found, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
		c.Found = strings.Join(strings.Fields(strings.TrimPrefix(c.Found, "NVRM version:")), " ")
	case m.has("sys/module/amdgpu"):
		c.State, c.Found, c.Lost = stateLimited, "amdgpu", "GPU activity: on AMD GPUs only calls of HIP are recorded"
	default:
		c.State, c.Found, c.Lost = stateAbsent, "neither NVIDIA's nor AMD's is loaded", "GPU activity; CPU work can "+
			"be recorded"
		c.Fix = "load the driver, or run this on the machine that has the GPU"
	}
	return c
}

func (m *machine) devices() check {
	c := check{Name: "GPU devices", State: stateOK}
	found, _ := fs.Glob(m.root, "dev/nvidia[0-9]*") // the pattern is right
	if m.has("dev/kfd") {
		found = append(found, "dev/kfd")
	}
	if len(found) == 0 {
		c.State, c.Found = stateAbsent, "none in /dev; a container may hide them, which is no obstacle"
		return c
	}
	c.Found = "/" + strings.Join(found, ", /")
	return c
}

func (m *machine) agentImage() check {
	c := check{Name: "agent", State: stateOK, Found: "for " + runtime.GOARCH}
	if _, err := agent.Image(runtime.GOARCH); err != nil {
		c.State, c.Found, c.Lost = stateLimited, err.Error(), "GPU activity: launches are recorded by probes"
	}
	return c
}

// profilerNames are programs that take CUPTI or the GPU's counters for all of a machine, by the name of their process.
var profilerNames = map[string]string{
	"nsys": "Nsight Systems", "nsys-launcher": "Nsight Systems", "ncu": "Nsight Compute", "nv-hostengine": "DCGM",
	"dcgm-exporter": "DCGM",
}

// profilers looks for programs that may hold CUPTI.
func (m *machine) profilers() []check {
	stats, _ := fs.Glob(m.root, "proc/[0-9]*/comm") // the pattern is right
	var found []string
	for _, name := range stats {
		text, err := m.read(name)
		if err != nil {
			continue
		}
		if known := profilerNames[strings.TrimSpace(text)]; known != "" {
			found = append(found, fmt.Sprintf("%s (pid %s)", known, path.Base(path.Dir(name))))
		}
	}
	c := check{Name: "other profilers", State: stateOK, Found: "none seen"}
	if len(found) > 0 {
		slices.Sort(found)
		c.Found = strings.Join(found, ", ")
		if strings.Contains(c.Found, "Nsight") {
			c.State, c.Lost, c.Fix = stateLimited, "GPU activity of the processes that it profiles: CUPTI has room "+
				"for one", "end it first"
		}
	}
	return []check{c}
}

// injected are libraries by which other tools sit in a process.
var injected = []string{
	"libToolsInjection",
	"libcuda-injection",
	"libInterceptorInjectionTarget",
	"libcuinj",
	"libnvperf_host_injection",
}

// cupti looks at what the target has mapped, and at what an agent that was there said.
func (m *machine) cupti(p *proc.Process, agents []recording.AgentStatus) []check {
	var driver, cupti, tool string
	all, err := proc.Mappings(p)
	if err != nil {
		return []check{
			{
				Name:  "libraries",
				State: stateUnknown,
				Found: err.Error(),
				Lost:  "everything about this process",
				Fix:   "run it as root, or with CAP_SYS_PTRACE",
			},
		}
	}
	for i := range all {
		base := path.Base(all[i].Path)
		switch {
		case cuda.IsDriverFile(base), strings.HasPrefix(base, "libamdhip64.so"):
			driver = all[i].Path
		case strings.HasPrefix(base, "libcupti.so"):
			cupti = all[i].Path
		}
		for _, name := range injected {
			if strings.HasPrefix(base, name) {
				tool = all[i].Path
			}
		}
	}
	out := []check{
		mapped("driver library", driver, "it has not used CUDA yet: a report is about its CPU work until then"),
		mapped("libcupti", cupti,
			"the agent looks for one beside the CUDA libraries; name another with inferscoped --cupti"),
	}
	out = append(out, m.holder(p, tool, agents))
	return out
}

func mapped(name, file, otherwise string) check {
	if file == "" {
		return check{Name: name, State: stateAbsent, Found: "not mapped: " + otherwise}
	}
	return check{Name: name, State: stateOK, Found: file}
}

// holder reports who holds CUPTI in the target, as far as that shows.
func (m *machine) holder(p *proc.Process, tool string, agents []recording.AgentStatus) check {
	c := check{
		Name:  "CUPTI",
		State: stateOK,
		Found: "no other profiler is seen to hold it; the agent finds out when it subscribes",
	}
	for i := range agents {
		if a := &agents[i]; a.PID == p.PID {
			c.Found = "the daemon's agent: " + a.State
			if a.State == "refused" {
				c.State, c.Found, c.Lost, c.Fix = stateLimited, a.Detail, "GPU activity", "see No GPU activity in docs/troubleshooting.md"
			}
			return c
		}
	}
	if tool != "" {
		c.State, c.Found, c.Lost, c.Fix = stateLimited, "another tool is in the process: "+tool, "GPU activity: CUPTI has room for one", "start the program without that tool"
		return c
	}
	if v, set, err := proc.Variable(p.PID, "CUDA_INJECTION64_PATH"); err == nil && set && v != "" &&
		!strings.Contains(path.Base(v), agent.FileName) {
		c.State, c.Found, c.Lost, c.Fix = stateLimited, "CUDA_INJECTION64_PATH="+v, "GPU activity, where that "+
			"library takes CUPTI", "start the program without it"
	}
	return c
}
