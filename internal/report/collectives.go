package report

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/collectives"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/report/document"
)

// maxOperations is how many rows the table of collective operations has at most.
const maxOperations = 20

// addCollectives reports what the program asked NCCL for.
func addCollectives(d *document.Document, m *Model) {
	s := m.Collectives
	if s == nil {
		return
	}
	if len(s.Communicators) > 0 {
		addOperations(d, s)
	}
	for i := range s.Hangs {
		addHang(d, &s.Hangs[i])
	}
	if s.Skew != nil {
		addRanks(d, s.Skew)
	}
}

func addOperations(d *document.Document, s *collectives.Summary) {
	t := &document.Table{Columns: []document.Column{
		document.Right("Process", 0),
		document.Left("Communicator", 1),
		document.Right("Rank", 1),
		document.Right("Ranks", 1),
		document.Left("Operation", 0),
		document.Left("Type", 2),
		document.Right("Calls", 0),
		document.Right("Bytes", 0),
		document.Right("Each", 1),
		document.Left("Algorithm, protocol, calls", 1),
		document.Right("Channels", 2),
		document.Right("In calls", 2),
		document.Right("GPU time", 1),
		document.Right("Algorithm bandwidth", 1), document.Right("Bus bandwidth", 0),
	}}
	rows := 0
	for i := range s.Communicators {
		c := &s.Communicators[i]
		for j := range c.Operations {
			if rows++; rows <= maxOperations {
				operationRow(t, c, &c.Operations[j])
			}
		}
	}
	t.Note = "Calls are those of the whole recording. GPU time and bandwidths are of the calls whose kernels, or " +
		"copies by copy engines, were recorded; a kernel runs until the slowest rank has taken part, so its time " +
		"includes waiting. That of copies is from a call's first to its last one. " +
		"Algorithm and protocol are what NCCL chose for the calls whose launches were recorded. " +
		"Bus bandwidth needs the number of ranks, which communicators of NCCL 2.21 and newer say; else " +
		"it is known of those that were made in the time recorded, and where NCCL's RAS answers."
	if more := rows - maxOperations; more > 0 {
		t.Note += fmt.Sprintf(" %d more are in the JSON report.", more)
	}
	if s.Failed > 0 {
		t.Note += fmt.Sprintf(" %s returned an error.", format.Plural(s.Failed, "call", "calls"))
	}
	d.AddTable("Collective operations", t)
}

func operationRow(t *document.Table, c *collectives.Communicator, o *collectives.Operation) {
	rank, ranks, each := format.Nothing, format.Nothing, format.Size(o.Smallest)
	kernel, algorithm, bus := format.Nothing, format.Nothing, format.Nothing
	if c.Rank >= 0 {
		rank = fmt.Sprint(c.Rank)
	}
	if c.Ranks > 0 {
		ranks = fmt.Sprint(c.Ranks)
	}
	if o.Largest != o.Smallest {
		each += " to " + format.Size(o.Largest)
	}
	if o.Time() > 0 {
		kernel, algorithm = format.Span(o.Time()), bandwidth(o.Algorithm)
	}
	choices, channels := o.Chosen()
	choices, channels = cmp.Or(choices, format.Nothing), cmp.Or(channels, format.Nothing)
	if o.Bus > 0 {
		bus = bandwidth(o.Bus)
	}
	t.Row(fmt.Sprint(c.PID), fmt.Sprintf("%#x", c.Address), rank, ranks, o.Name, o.Type, format.Count(o.Calls),
		format.Size(o.Bytes), each, choices, channels, format.Span(o.Host), kernel, algorithm, bus)
}

func bandwidth(bytesPerSecond float64) string { return format.Size(uint64(bytesPerSecond)) + "/s" }

// addRanks reports who came late to collectives.
func addRanks(d *document.Document, s *collectives.Skew) {
	t := &document.Table{Columns: []document.Column{
		document.Right("Process", 0),
		document.Right("GPU", 0),
		document.Right("Came last", 0),
		document.Right("Waited", 0),
		document.Right("Behind the first p50", 1), document.Right("p99", 1),
	}}
	for _, r := range s.Ranks {
		t.Row(fmt.Sprint(r.PID), fmt.Sprint(r.Device), format.Percent(float64(r.Last)/float64(s.Collectives)),
			format.Span(r.Waited), format.Span(r.Median), format.Span(r.P99))
	}
	t.Note = fmt.Sprintf(
		"In %s in which all ranks took part, known from their kernels, the last rank began %s (p50), %s (p99) after "+
			"the first.",
		format.Plural(s.Collectives, "collective", "collectives"),
		format.Span(s.Median),
		format.Span(s.P99),
	)
	d.AddTable("Ranks", t)
}

// addHang reports who is missing in a collective that cannot end, and what it does.
func addHang(d *document.Document, h *collectives.Hang) {
	t := &document.Table{Columns: []document.Column{
		document.Right("Process", 0),
		document.Right("Rank", 1),
		document.Left("Name", 1),
		document.Right("Thread", 0),
		document.Right("Calls behind", 1),
		document.Left("It is", 0),
		document.Left("Where, the innermost first", 0),
	}}
	for i := range h.Missing {
		m := &h.Missing[i]
		state, stack := format.Nothing, m.Stack
		switch {
		case m.Ended:
			state = "ended"
		case m.State != "":
			state = m.State + " for " + format.Span(m.For)
		}
		where := format.Nothing
		if len(stack) > 0 {
			where = strings.Join(stack[:min(len(stack), maxHangFrames)], " < ")
		}
		rank := format.Nothing
		if m.Rank >= 0 {
			rank = fmt.Sprint(m.Rank)
		}
		t.Row(fmt.Sprint(m.PID), rank, m.Name, fmt.Sprint(m.TID), fmt.Sprint(m.Behind), state, where)
	}
	t.Note = fmt.Sprintf(
		"%s of %s cannot end: %s waited in it for %s up to the end of the recording, and these have not called it. "+
			"Whole stacks are in the JSON report.",
		h.Operation,
		format.Plural(len(h.Waiting)+len(h.Missing), "process", "processes"),
		format.Plural(len(h.Waiting), "process", "processes"),
		format.Span(h.Waited),
	)
	d.AddTable("Ranks that have not come", t)
}

// maxHangFrames is how many frames of a missing rank the table has.
const maxHangFrames = 6
