package diagnose

import (
	"fmt"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/collectives"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
)

// hang is the finding about a collective that cannot end. Its cost is how long the others have waited, of the whole
// recording: their kernels have not ended, so that no breakdown holds that time as what it is.
func (a *analysis) hang(d *Diagnosis, h *collectives.Hang) Finding {
	row := a.table[cause.Hang]
	f := Finding{
		Cause: row.Key, Title: hangTitle(h), Cost: h.Waited, Share: share(h.Waited, a.t.To-a.t.From),
		Confidence: sureSeen,
		Because: []string{
			"all calls of the communicator since a moment at which its ranks were even were recorded",
		},
		Evidence: []Evidence{{
			Text: fmt.Sprintf("%s have called %s and wait in it; nothing of the communicator was called since",
				format.Plural(len(h.Waiting), "process", "processes"), h.Operation),
			From: h.Since, To: h.Since + h.Waited,
		}},
	}
	for i := range h.Missing {
		m := &h.Missing[i]
		text := fmt.Sprintf("%s has not: it made %s fewer", rankOf(m.Name, m.PID, m.Rank),
			format.Plural(m.Behind, "call", "calls"))
		switch {
		case m.Ended:
			text += ", and has ended"
		case m.State != "":
			text += fmt.Sprintf(", and its thread %d is %s for %s", m.TID, m.State, format.Span(m.For))
		}
		f.Evidence = append(f.Evidence, Evidence{Text: text, Call: m.Stack})
		if len(h.Missing) == 1 {
			f.PID, f.TID, f.Thread = m.PID, m.TID, a.names[threadKey(m.PID, m.TID)]
			if len(m.Stack) > 0 {
				f.Place = m.Stack[0]
			}
		}
	}
	f.Evidence = append(f.Evidence, rasEvidence(a.t.Rec.Meta.RAS)...)
	f.Changes = a.changes(d, row, facts{})
	return f
}

// rasEvidence returns what NCCL's RAS reports about ranks that are behind or do not answer.
func rasEvidence(r *recording.RAS) []Evidence {
	var out []Evidence
	list := collectives.Lates(r)
	for i := range list {
		if i == maxRows {
			return append(out, Evidence{Text: fmt.Sprintf("NCCL's RAS names %d more ranks.", len(list)-i)})
		}
		l := &list[i]
		who := fmt.Sprintf("rank %d", l.Rank.Rank)
		if l.Rank.PID != 0 {
			who += fmt.Sprintf(" (process %d on %s)", l.Rank.PID, format.Clean(l.Rank.Host))
		}
		text := fmt.Sprintf("NCCL's RAS: %s of communicator %s does not answer", who, format.Clean(l.Communicator))
		switch {
		case l.Rank.Dead:
			text += ", and is considered dead"
		case l.Operation != "":
			text = fmt.Sprintf("NCCL's RAS: %s of communicator %s has launched %s %s, another rank %d", who,
				format.Clean(l.Communicator), format.Clean(l.Operation), format.Plural(l.Count, "time", "times"), l.Most)
		}
		out = append(out, Evidence{Text: text})
	}
	if r != nil && len(list) == 0 {
		out = append(out, Evidence{Text: "NCCL's RAS names no rank that is behind or does not answer"})
	}
	return out
}

// maxMissing bounds the missing ranks in a title.
const maxMissing = 3

// hangTitle names the missing ranks.
func hangTitle(h *collectives.Hang) string {
	var names []string
	for i := range h.Missing[:min(len(h.Missing), maxMissing)] {
		m := &h.Missing[i]
		names = append(names, rankOf(m.Name, m.PID, m.Rank))
	}
	who := strings.Join(names, ", ")
	if more := len(h.Missing) - len(names); more > 0 {
		who += fmt.Sprintf(" and %d more", more)
	}
	has := "has"
	if len(h.Missing) > 1 {
		has = "have"
	}
	return fmt.Sprintf("%s %s not come to %s, in which %s", who, has, h.Operation, waits(len(h.Waiting)))
}

func waits(n int) string {
	if n == 1 {
		return "1 rank waits"
	}
	return fmt.Sprintf("%d ranks wait", n)
}

// rankOf returns the name of a rank's process, after its number where that is known.
func rankOf(name string, pid uint32, rank int) string {
	if rank < 0 {
		return format.Clean(fmt.Sprintf("%s (%d)", orElse(name, "process"), pid))
	}
	return format.Clean(fmt.Sprintf("rank %d of its communicator (%s, %d)", rank, orElse(name, "process"), pid))
}

// hungHeadline describes who is missing and for how long.
func hungHeadline(d *Diagnosis) string {
	f := &d.Findings[0]
	s := fmt.Sprintf("%s, for %s up to the end of the recording", f.Title, format.Span(f.Cost))
	if f.Place != "" {
		s += "; it is in " + f.Place
	}
	return s + "."
}
