package doctor

import (
	"fmt"
	"os"
	"strings"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/procfile"
)

// target looks at one process.
func (m *machine) target(o Options) (section, error) {
	p, err := proc.Describe(o.PID)
	if err != nil {
		return section{}, err
	}
	defer func() { _ = p.Close() }() // it was only looked at
	s := section{Title: fmt.Sprintf("Process %d (%s)", p.PID, p.Comm)}
	text, err := procfile.ReadStatus(fmt.Sprintf("/proc/%d/status", p.PID))
	if err != nil {
		return s, err
	}
	s.Checks = append(s.Checks, m.namespaces(p.PID)...)
	s.Checks = append(s.Checks, stateChecks(text)...)
	s.Checks = append(s.Checks, m.cupti(p, o.Agents)...)
	return s, nil
}

// kinds are the namespaces of a process that matter here, as /proc/PID/ns calls them.
var kinds = []string{"pid", "mnt", "net", "user"}

// namespaces reports which of a target's are not this process's: none of them is an obstacle.
func (m *machine) namespaces(pid uint32) []check {
	var own, other []string
	for _, kind := range kinds {
		ours, err := os.Readlink("/proc/self/ns/" + kind)
		theirs, failed := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
		if err != nil || failed != nil {
			return []check{
				{
					Name:  "namespaces",
					State: stateUnknown,
					Found: "cannot be read",
					Fix:   "run it as root, or with CAP_SYS_PTRACE",
				},
			}
		}
		if ours == theirs {
			own = append(own, kind)
		} else {
			other = append(other, kind)
		}
	}
	if len(other) == 0 {
		return []check{{Name: "namespaces", State: stateOK, Found: "the same as here"}}
	}
	return []check{
		{Name: "namespaces", State: stateOK, Found: fmt.Sprintf("its own: %s; shared: %s", list(other), list(own))},
	}
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// stateChecks reads from /proc/PID/status what keeps an agent out.
func stateChecks(status procfile.Status) []check {
	const noAgent = "GPU activity: the agent cannot be loaded; launches are recorded by probes"
	seccomp := check{Name: "seccomp", State: stateOK, Found: "none"}
	switch status.Field("Seccomp") {
	case "1":
		seccomp.State, seccomp.Found, seccomp.Lost, seccomp.Fix = stateLimited, "strict", noAgent, "start the program with `inferscope run`"
	case "2":
		seccomp.Found = "filtered; whether the agent's system calls pass is asked of the filter before it is loaded"
	}
	tracer := check{Name: "tracer", State: stateOK, Found: "none"}
	if pid := status.Field("TracerPid"); pid != "" && pid != "0" {
		tracer.State, tracer.Found, tracer.Lost = stateLimited, "pid "+pid, noAgent
		tracer.Fix = "end the debugger or tracer, or start the program with `inferscope run`"
	}
	out := []check{seccomp, tracer}
	if strings.Contains(status.Field("x86_Thread_features"), "shstk") {
		out = append(out, check{
			Name: "shadow stack", State: stateLimited, Found: "in use", Lost: noAgent,
			Fix: "start it with GLIBC_TUNABLES=glibc.cpu.x86_shstk=off, or with `inferscope run`",
		})
	}
	return out
}
