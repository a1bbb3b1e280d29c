package feature

import (
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/procfile"
)

// Capability is a bit of the effective set.
type Capability uint

// The capabilities that matter here.
const (
	bpf               Capability = unix.CAP_BPF
	Perfmon           Capability = unix.CAP_PERFMON
	sysPtrace         Capability = unix.CAP_SYS_PTRACE
	SysAdmin          Capability = unix.CAP_SYS_ADMIN
	dacReadSearch     Capability = unix.CAP_DAC_READ_SEARCH
	checkpointRestore Capability = unix.CAP_CHECKPOINT_RESTORE
	sysResource       Capability = unix.CAP_SYS_RESOURCE
)

// String returns the name as capabilities(7) spells it.
func (c Capability) String() string {
	switch c {
	case bpf:
		return "CAP_BPF"
	case Perfmon:
		return "CAP_PERFMON"
	case sysPtrace:
		return "CAP_SYS_PTRACE"
	case SysAdmin:
		return "CAP_SYS_ADMIN"
	case dacReadSearch:
		return "CAP_DAC_READ_SEARCH"
	case checkpointRestore:
		return "CAP_CHECKPOINT_RESTORE"
	case sysResource:
		return "CAP_SYS_RESOURCE"
	}
	return fmt.Sprintf("capability %d", uint(c))
}

// capabilities is an effective set. Known is false where it could not be read.
type capabilities struct {
	Known bool
	set   uint64
}

// Has reports whether c is effective. CAP_SYS_ADMIN stands for CAP_BPF, CAP_PERFMON
// and CAP_CHECKPOINT_RESTORE, as in the kernel (include/linux/capability.h).
func (cs capabilities) Has(c Capability) bool {
	if c == bpf || c == Perfmon || c == checkpointRestore {
		return cs.set>>c&1 != 0 || cs.set>>SysAdmin&1 != 0
	}
	return cs.set>>c&1 != 0
}

// Need is a use of privileges and the capabilities that it takes.
type Need struct {
	For      string
	Needs    []Capability
	Optional bool // the rest works without
}

// Needs reports what takes which capability (measured on 6.18 and 6.1 kernels).
// CAP_SYS_RESOURCE stands nowhere: kernels from 5.11 on account BPF memory
// without RLIMIT_MEMLOCK.
func Needs() []Need {
	return []Need{
		{For: "loading programs and attaching them to tracepoints", Needs: []Capability{bpf, Perfmon}},
		{For: "reading what a process of another user has mapped, and probing it", Needs: []Capability{sysPtrace}},
		{For: "probing on kernels before 6.6, through perf events", Needs: []Capability{SysAdmin}, Optional: true},
		{
			For:      "reading a library that was deleted while mapped",
			Needs:    []Capability{dacReadSearch, checkpointRestore},
			Optional: true,
		},
	}
}

// Missing returns the needs that are not met, each with the missing capabilities only.
func (cs capabilities) Missing() []Need {
	var out []Need
	for _, n := range Needs() {
		var lacks []Capability
		for _, c := range n.Needs {
			if !cs.Has(c) {
				lacks = append(lacks, c)
			}
		}
		if len(lacks) > 0 {
			out = append(out, Need{For: n.For, Needs: lacks, Optional: n.Optional})
		}
	}
	return out
}

// capabilities reads CapEff of /proc/self/status.
func (p Prober) capabilities() capabilities {
	s, err := p.read("proc/self/status")
	if err != nil {
		return capabilities{}
	}
	set, err := strconv.ParseUint(procfile.Status(s).Field("CapEff"), 16, 64)
	return capabilities{Known: err == nil, set: set}
}
