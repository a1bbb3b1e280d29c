package api

import (
	"maps"
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// visible returns what the unprivileged user uid may see of st: own targets without the processes in them that are
// somebody else's, the libraries mapped there, of losses nothing that names other processes or files, and no warnings.
func visible(st Status, uid uint32) Status {
	pids := map[uint32]bool{}
	targets := []Target{}
	for _, t := range st.Targets {
		if t.Owner != uid {
			continue
		}
		t.Processes = slices.DeleteFunc(slices.Clone(t.Processes),
			func(p recording.Process) bool { return t.Others[p.PID] })
		t.Withheld = len(t.Others)
		t.Roles = maps.Clone(t.Roles)
		maps.DeleteFunc(t.Roles, func(pid uint32, _ string) bool { return t.Others[pid] })
		for _, p := range t.Processes {
			pids[p.PID] = true
		}
		t.Losses = onlyOf(t.Losses, pids)
		targets = append(targets, t)
	}
	libraries := []recording.Library{}
	for _, l := range st.Libraries {
		if pids[l.PID] {
			libraries = append(libraries, l)
		}
	}
	st.Targets, st.Libraries, st.Discovery = targets, libraries, nil
	st.Kept, st.Warnings, st.WarningsOmitted = nil, nil, 0
	st.Agents = slices.DeleteFunc(slices.Clone(st.Agents), func(a recording.AgentStatus) bool { return !pids[a.PID] })
	st.Overhead = slices.DeleteFunc(slices.Clone(st.Overhead),
		func(o recording.Overhead) bool { return !pids[o.Target] })
	st.Losses, st.Rings.Losses = anonymous(st.Losses, pids), anonymous(st.Rings.Losses, pids)
	return st
}

// anonymous keeps of each loss its reason and count, and where it happened only if that is a CPU or one of these
// processes.
func anonymous(losses []loss.Loss, pids map[uint32]bool) []loss.Loss {
	out := []loss.Loss{}
	for _, l := range losses {
		if pids[l.PID] {
			out = append(out, l)
			continue
		}
		l.PID, l.Where, l.Detail = 0, l.CPU.String(), ""
		out = append(out, l)
	}
	return out
}

// onlyOf keeps the losses of these processes.
func onlyOf(losses []loss.Loss, pids map[uint32]bool) []loss.Loss {
	return slices.DeleteFunc(slices.Clone(losses), func(l loss.Loss) bool {
		return !pids[l.PID]
	})
}
