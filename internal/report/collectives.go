package report

import (
	"fmt"

	"github.com/inferscope/inferscope/internal/analysis/collectives"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/report/document"
)

// maxOperations is how many rows the table of collective operations has at most.
const maxOperations = 20

// addCollectives says what the program asked NCCL for.
func addCollectives(d *document.Document, m *Model) {
	s := m.Collectives
	if s == nil {
		return
	}
	t := &document.Table{Columns: []document.Column{
		document.Right(
			"Process",
			0,
		), document.Left("Communicator", 1), document.Right("Ranks", 1), document.Left("Operation", 0), document.Left("Type", 2),
		document.Right(
			"Calls",
			0,
		), document.Right("Bytes", 0), document.Right("Each", 1), document.Right("In calls", 2), document.Right("GPU time", 1),
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
	t.Note = "Calls are those of the whole recording. GPU time and bandwidths are of the calls whose kernels were recorded; a kernel runs until the slowest rank has taken part, so that its time is also that of waiting. Bus bandwidth needs the number of ranks, which is known of communicators that were made in the time recorded."
	if more := rows - maxOperations; more > 0 {
		t.Note += fmt.Sprintf(" %d more are in the JSON report.", more)
	}
	if s.Failed > 0 {
		t.Note += fmt.Sprintf(" %s returned an error.", format.Plural(s.Failed, "call", "calls"))
	}
	d.AddTable("Collective operations", t)
}

func operationRow(t *document.Table, c *collectives.Communicator, o *collectives.Operation) {
	ranks, each, kernel, algorithm, bus := format.Nothing, format.Size(
		o.Smallest,
	), format.Nothing, format.Nothing, format.Nothing
	if c.Ranks > 0 {
		ranks = fmt.Sprint(c.Ranks)
	}
	if o.Largest != o.Smallest {
		each += " to " + format.Size(o.Largest)
	}
	if o.Kernels > 0 {
		kernel, algorithm = format.Span(o.Kernel), bandwidth(o.Algorithm)
	}
	if o.Bus > 0 {
		bus = bandwidth(o.Bus)
	}
	t.Row(
		fmt.Sprint(c.PID),
		fmt.Sprintf("%#x", c.Address),
		ranks,
		o.Name,
		o.Type,
		format.Count(o.Calls),
		format.Size(o.Bytes),
		each,
		format.Span(o.Host),
		kernel,
		algorithm,
		bus,
	)
}

func bandwidth(bytesPerSecond float64) string { return format.Size(uint64(bytesPerSecond)) + "/s" }
