package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/analyze"
	"github.com/inferscope/inferscope/internal/api"
	"github.com/inferscope/inferscope/internal/human"
	"github.com/inferscope/inferscope/internal/page"
	"github.com/inferscope/inferscope/internal/report"
)

func statusCommand(g *global) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what the daemon does, and what it costs",
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return g.status(cmd, asJSON) },
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (g *global) status(cmd *cobra.Command, asJSON bool) error {
	client, err := g.dial()
	if err != nil {
		return err
	}
	defer client.Close()
	s, err := client.Status(cmd.Context())
	if err != nil {
		return err
	}
	if asJSON {
		return writeJSON(g.stdout, s)
	}
	return page.Text(g.stdout, statusPage(&s), styleOf(g.stdout, g.environ))
}

func statusPage(s *api.Status) *page.Document {
	d := &page.Document{Title: "inferscoped " + human.Clean(s.Version)}
	d.Add(statusFacts(s))
	if doubts := report.FromLosses(s.Losses); len(doubts) > 0 {
		d.Add(page.Heading("Losses and doubts since the daemon started"))
		for i := range doubts {
			d.Add(doubts[i].Notice())
		}
	}
	d.AddTable("Targets", targetTable(s.Targets))
	if len(s.Targets) == 0 {
		d.Add(page.Paragraph("It watches no process that this user may see."))
	}
	d.AddTable("Sources", sourceTable(s))
	d.AddTable("Agents", agentTable(s.Agents))
	if f := agentFacts(s.Agents); len(f) > 0 {
		d.Add(f)
	}
	d.AddTable("Probes", report.Probes(analyze.Libraries(s.Libraries)))
	return d
}

func statusFacts(s *api.Status) page.Facts {
	var f page.Facts
	f.Add("Running", fmt.Sprintf("pid %d for %s", s.PID, seconds(s.Uptime)))
	cost := fmt.Sprintf("%s of CPU time", seconds(s.Self.CPU))
	if s.Uptime > 0 {
		cost += fmt.Sprintf(" (%s of a core)", human.Percent(s.Self.CPU/s.Uptime))
	}
	f.Add("Cost", fmt.Sprintf("%s, %s of memory, and %s of kernel memory for ring buffers", cost, memory(s.Self.RSS), memory(s.Rings.Bytes)))
	r := &s.Recorder
	kept := fmt.Sprintf("%s in %s of %s", human.Plural(r.Events, "event", "events"), memory(r.Used), memory(r.Budget))
	if r.Events > 0 {
		kept += fmt.Sprintf(", reaching back %s", seconds(r.Reach))
	}
	f.Add("Kept", fmt.Sprintf("%s (at most %s)", kept, seconds(r.Keep)))
	if r.Overwritten > 0 {
		f.Add("Overwritten", human.Plural(r.Overwritten, "event", "events")+" so far, to make room for newer ones")
	}
	f.Add("Received", human.Plural(s.Rings.Events, "event", "events")+" so far")
	return f
}

func sourceTable(s *api.Status) *page.Table {
	t := &page.Table{Columns: []page.Column{page.Left("Source", 0), page.Left("State", 0), page.Left("Detail", 1)}}
	for _, src := range s.Sources {
		t.Row(human.Clean(src.Name), human.Clean(src.State), human.Clean(src.Detail))
	}
	return t
}

// agentTable shows what records the GPU activity of each process.
func agentTable(agents []api.Agent) *page.Table {
	t := &page.Table{Columns: []page.Column{
		page.Right("pid", 0), page.Left("State", 0), page.Right("Kernels", 0), page.Right("Windows", 0), page.Right("Dropped", 0),
		page.Right("Stopped", 0), page.Left("CUPTI", 1),
	}}
	for i := range agents {
		a := &agents[i]
		t.Row(strconv.FormatUint(uint64(a.PID), 10), a.State, human.Count(a.Kernels), human.Count(a.Windows), human.Count(a.Dropped),
			human.Span(a.Stopped), human.Clean(a.CUPTI))
	}
	return t
}

// agentFacts are what agents say of themselves: whole sentences, which a table has no room for.
func agentFacts(agents []api.Agent) (f page.Facts) {
	for i := range agents {
		a := &agents[i]
		said := slices.DeleteFunc([]string{a.Detail, a.Slower}, func(s string) bool { return s == "" })
		if len(said) > 0 {
			f.Add(fmt.Sprintf("pid %d", a.PID), human.Clean(strings.Join(said, "; ")))
		}
	}
	return f
}

// memory writes a size from the API, which is not negative.
func memory(n int64) string { return human.Size(uint64(max(0, n))) }
