package html

import (
	"fmt"

	"github.com/inferscope/inferscope/internal/format"
)

// rankTables are the tables of what goes on between GPUs.
func rankTables(in Input) []table {
	var out []table
	if in.Exchanged != nil {
		out = append(out, collectiveTable(in), arrivalTable(in))
	}
	if in.Topology != nil {
		out = append(out, nodeTable(in), linkTable(in))
	}
	return out
}

// collectiveTable lists the operations of each communicator.
func collectiveTable(in Input) table {
	t := table{Key: "collectives", Title: "Collectives", Columns: []column{
		{"Process", "id"},
		{"Communicator", "code"},
		{"Rank", "id"},
		{"Ranks", "count"},
		{"Operation", "text"},
		{"Type", "text"},
		{"Calls", "count"},
		{"Bytes", "bytes"},
		{"Smallest", "bytes"},
		{"Largest", "bytes"},
		{"Algorithm, protocol, calls", "text"},
		{"Channels", "text"},
		{"In calls", "ns"},
		{"GPU time", "ns"},
		{"Algorithm bandwidth", "rate"},
		{"Bus bandwidth", "rate"},
	}, Note: "Calls are those of the whole recording. GPU time and bandwidths are of calls whose kernels or copies " +
		"were recorded; a kernel runs until the slowest rank has taken part."}
	for i := range in.Exchanged.Communicators {
		c := &in.Exchanged.Communicators[i]
		for j := range c.Operations {
			o := &c.Operations[j]
			choices, channels := o.Chosen()
			row := []any{
				c.PID, fmt.Sprintf("%#x", c.Address), nil, nil, o.Name, o.Type, o.Calls, o.Bytes, o.Smallest, o.Largest,
				choices, channels, o.Host, nil, nil, nil,
			}
			if c.Rank >= 0 {
				row[2] = c.Rank
			}
			if c.Ranks > 0 {
				row[3] = c.Ranks
			}
			if o.Time() > 0 {
				row[13], row[14] = o.Time(), o.Algorithm
			}
			if o.Bus > 0 {
				row[15] = o.Bus
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

// arrivalTable has when ranks came to the collectives that all of them took part in.
func arrivalTable(in Input) table {
	t := table{Key: "ranks", Title: "Ranks", Columns: []column{
		{"Process", "id"},
		{"GPU", "id"},
		{"Came last", "share"},
		{"Waited", "ns"},
		{"Behind the first p50", "ns"},
		{"p99", "ns"},
	}}
	s := in.Exchanged.Skew
	if s == nil {
		return t
	}
	for _, r := range s.Ranks {
		t.Rows = append(
			t.Rows,
			[]any{r.PID, r.Device, float64(r.Last) / float64(max(1, s.Collectives)), r.Waited, r.Median, r.P99},
		)
	}
	t.Note = fmt.Sprintf(
		"In %s that all ranks took part in. From the first rank's beginning to the last one's it took %s (p50), %s (p99).",
		format.Plural(s.Collectives, "collective", "collectives"), format.Span(s.Median), format.Span(s.P99),
	)
	return t
}

// nodeTable lists the NUMA nodes of GPUs and of the threads that launch for them.
func nodeTable(in Input) table {
	t := table{Key: "nodes", Title: "NUMA nodes of GPUs", Columns: []column{
		{"Process", "id"},
		{"GPU", "id"},
		{"PCI address", "code"},
		{"Node", "text"},
		{"Launched by", "code"},
		{"Of its work", "share"},
		{"Ran on node", "text"},
		{"On another node", "share"},
	}}
	s := in.Topology
	node := func(n int) string {
		if n < 0 {
			return "not known"
		}
		return fmt.Sprint(n)
	}
	for i := range s.Launchers {
		l := &s.Launchers[i]
		g := &s.GPUs[l.GPU]
		row := []any{
			l.PID, g.ID, format.Clean(g.Bus), node(g.Node),
			fmt.Sprintf("%s (%d)", format.Clean(l.Name), l.TID), l.Share,
			node(l.Node), nil,
		}
		if l.Ran > 0 && g.Node >= 0 {
			row[7] = float64(l.Far) / float64(l.Ran)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// linkTable lists how the GPUs are connected.
func linkTable(in Input) table {
	t := table{Key: "links", Title: "Links between GPUs", Columns: []column{
		{"GPU", "code"},
		{"and GPU", "code"},
		{"Connected by", "text"},
	}}
	for _, l := range in.Topology.Links {
		t.Rows = append(t.Rows, []any{in.Topology.GPUs[l.A].Name(), in.Topology.GPUs[l.B].Name(), l.Text})
	}
	return t
}
