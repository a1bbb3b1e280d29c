package api

import (
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/loss"
	"github.com/inferscope/inferscope/internal/record"
)

// visible returns what the unprivileged user uid may see of st: own targets, the
// libraries mapped there, and of losses nothing that names other processes or files.
func visible(st Status, uid uint32) Status {
	pids := map[uint32]bool{}
	targets := []Target{}
	for _, t := range st.Targets {
		if t.UID != uid {
			continue
		}
		targets = append(targets, t)
		pids[t.PID] = true
		for _, p := range t.Processes {
			pids[p.PID] = true
		}
	}
	libraries := []record.Library{}
	for _, l := range st.Libraries {
		if pids[l.PID] {
			libraries = append(libraries, l)
		}
	}
	st.Targets, st.Libraries = targets, libraries
	st.Agents = slices.DeleteFunc(slices.Clone(st.Agents), func(a Agent) bool { return !pids[a.PID] })
	st.Losses, st.Rings.Losses = anonymous(st.Losses), anonymous(st.Rings.Losses)
	return st
}

// anonymous keeps of each loss its reason and count, and where it happened only if that is a CPU.
func anonymous(losses []loss.Loss) []loss.Loss {
	out := []loss.Loss{}
	for _, l := range losses {
		l.Detail = ""
		if !strings.HasPrefix(l.Where, "cpu ") {
			l.Where = ""
		}
		out = append(out, l)
	}
	return out
}
