package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/analysis/summary"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/report"
	"github.com/inferscope/inferscope/internal/report/document"
)

func statusCommand(g *global) *cobra.Command {
	var asJSON bool
	var watch time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of the daemon and its overhead",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("watch") {
				return g.watchStatus(cmd, asJSON, watch)
			}
			return g.status(cmd, asJSON)
		},
	}
	cmd.Flags().DurationVar(&watch, "watch", 2*time.Second, "refresh at this interval until Ctrl-C")
	cmd.Flags().Lookup("watch").NoOptDefVal = "2s"
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
	return document.Text(g.stdout, statusPage(&s), styleOf(g.stdout, g.environ))
}

// watchStatus shows the status repeatedly until interrupted; on a terminal each replaces the one before.
func (g *global) watchStatus(cmd *cobra.Command, asJSON bool, every time.Duration) error {
	const home = "\x1b[H\x1b[J" // ECMA-48: CUP and ED
	if every < 100*time.Millisecond || every > time.Hour {
		return clierror.New(clierror.Usage, "write it like --watch=2s",
			fmt.Errorf("--watch: %s is not 100ms to 1h", every))
	}
	next := time.NewTicker(every)
	defer next.Stop()
	for {
		if _, ok := terminal(g.stdout); ok && !asJSON {
			fmt.Fprint(g.stdout, home)
		}
		if err := g.status(cmd, asJSON); err != nil && cmd.Context().Err() == nil {
			return err
		}
		select {
		case <-cmd.Context().Done():
			return nil
		case <-next.C:
		}
	}
}

func statusPage(s *api.Status) *document.Document {
	d := &document.Document{Title: "inferscoped " + format.Clean(s.Version)}
	d.Add(statusFacts(s))
	if doubts := report.FromLosses(s.Losses); len(doubts) > 0 {
		d.Add(document.Heading("Losses and doubts since the daemon started"))
		for i := range doubts {
			d.Add(doubts[i].Notice())
		}
	}
	d.AddTable("Targets", targetTable(s.Targets))
	if len(s.Targets) == 0 {
		d.Add(document.Paragraph("It watches no process that this user may see."))
	}
	if len(s.Sources) > 0 {
		d.Add(document.Heading("Sources"), sourceFacts(s))
	}
	addOverhead(d, s.Overhead)
	d.AddTable("Agents", agentTable(s.Agents))
	if f := agentFacts(s.Agents); len(f) > 0 {
		d.Add(f)
	}
	d.AddTable("GPUs", sensorTable(s.Sensors))
	d.AddTable("What the links of the GPUs carry", linkTable(s.Sensors))
	var errors document.Bullets
	for _, x := range s.Xids {
		errors = append(errors, report.XidText(&x))
	}
	if len(errors) > 0 {
		d.Add(errors)
	}
	d.AddTable("Probes", report.Probes(summary.Libraries(s.Libraries)))
	return d
}

// sensorTable shows the current readings of each GPU's sensors.
func sensorTable(samples []recording.Sensor) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Left("GPU", 0), document.Right("Power", 0), document.Right("°C", 0), document.Right("SM clock", 0),
		document.Right("Utilization", 0), document.Right("Memory used", 0), document.Left("Clocks limited by", 1),
	}}
	for i := range samples {
		s := &samples[i]
		var limits []string
		for _, r := range recording.ClockReasons() {
			if s.Reasons&r.Bit != 0 {
				limits = append(limits, r.Name)
			}
		}
		t.Row(fmt.Sprintf("%d %s", s.GPU, format.Clean(s.Name)),
			reading(s.Power, fmt.Sprintf("%.0f W", float64(s.Power)/1000)),
			reading(uint64(s.Temperature), fmt.Sprint(s.Temperature)),
			reading(s.SMClock, fmt.Sprintf("%d MHz", s.SMClock)), utilization(s),
			fmt.Sprintf("%s of %s", format.Size(s.MemoryUsed), format.Size(s.MemoryTotal)),
			strings.Join(limits, ", "))
	}
	return t
}

// utilization is not known of a divided GPU.
func utilization(s *recording.Sensor) string {
	if s.MIG {
		return format.Nothing
	}
	return fmt.Sprintf("%d%%", s.Utilization)
}

// linkTable shows what the links of each GPU carry, where that is known.
func linkTable(samples []recording.Sensor) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Left("GPU", 0), document.Left("Link", 0), document.Right("Received", 0), document.Right("Sent", 0),
	}}
	for i := range samples {
		s := &samples[i]
		if s.Links&recording.PCIeLink != 0 {
			t.Row(strconv.Itoa(s.GPU), "PCIe", report.Rate(s.PCIeRx), report.Rate(s.PCIeTx))
		}
		if s.Links&recording.NVLink != 0 {
			t.Row(strconv.Itoa(s.GPU), "NVLink", report.Rate(s.NVLinkRx), report.Rate(s.NVLinkTx))
		}
	}
	return t
}

// reading returns the text of a value that a GPU gives; 0 stands for one that it does not.
func reading(value uint64, text string) string {
	if value == 0 {
		return format.Nothing
	}
	return text
}

// addOverhead adds the overhead of each target and how it was limited.
func addOverhead(d *document.Document, targets []recording.Overhead) {
	var f document.Facts
	for i := range targets {
		f.Add(fmt.Sprintf("pid %d", targets[i].Target), report.OverheadFact(&targets[i]))
	}
	if len(f) == 0 {
		return
	}
	d.Add(document.Heading("What watching costs"), f)
	for i := range targets {
		d.AddTable(fmt.Sprintf("Levels of the last minute, costs of pid %d", targets[i].Target),
			report.OverheadTable(&targets[i]))
	}
}

func statusFacts(s *api.Status) document.Facts {
	var f document.Facts
	f.Add("Running", fmt.Sprintf("pid %d for %s", s.PID, seconds(s.Uptime)))
	cost := fmt.Sprintf("%s of CPU time", seconds(s.Self.CPU))
	if s.Uptime > 0 {
		cost += fmt.Sprintf(" (%s of a core)", format.Percent(s.Self.CPU/s.Uptime))
	}
	f.Add("Cost", fmt.Sprintf("%s, %s of memory, and %s of kernel memory for ring buffers",
		cost, memory(s.Self.RSS), memory(s.Rings.Bytes)))
	r := &s.Recorder
	kept := fmt.Sprintf("%s in %s of %s", format.Plural(r.Events, "event", "events"), memory(r.Used), memory(r.Budget))
	if r.Events > 0 {
		kept += fmt.Sprintf(", reaching back %s", seconds(r.Reach))
	}
	f.Add("Kept", fmt.Sprintf("%s (at most %s)", kept, seconds(r.Keep)))
	if r.Overwritten > 0 {
		f.Add("Overwritten", format.Plural(r.Overwritten, "event", "events")+" so far, to make room for newer ones")
	}
	f.Add("Received", format.Plural(s.Rings.Events, "event", "events")+" so far")
	for _, src := range s.Sources {
		if src.Content != "" {
			f.Add("Content", format.Clean(src.Content))
		}
	}
	if s.Kept != nil {
		keptFacts(&f, s.Kept)
	}
	return f
}

// keptFacts adds the state of recordings on disk.
func keptFacts(f *document.Facts, k *api.Kept) {
	text := fmt.Sprintf("%s on the disk, %s, of %s made",
		format.Plural(k.Kept, "recording", "recordings"), memory(k.Bytes), format.Count(k.Recordings))
	if k.Deleted > 0 {
		text += fmt.Sprintf("; %s deleted by quota or age, not uploaded", format.Count(k.Deleted))
	}
	if k.Lost > 0 {
		text += fmt.Sprintf("; %s lost, as they had just begun", format.Count(k.Lost))
	}
	if k.Killed > 0 {
		text += fmt.Sprintf("; up to 10 s are missing where the recorder was killed, %s", times(k.Killed))
	}
	if k.FlightsOmitted > 0 {
		text += fmt.Sprintf("; %s omitted (trigger_per_day)", format.Plural(k.FlightsOmitted, "trigger", "triggers"))
	}
	f.Add("Recordings", text+failures(k.Failed, "a stretch was not written", "stretches were not written", k.Error))
	if k.Uploaded > 0 || k.Pending > 0 || k.UploadFailed > 0 {
		text := fmt.Sprintf("%s, %s to go",
			format.Plural(k.Uploaded, "recording", "recordings"), format.Count(k.Pending))
		f.Add("Uploaded", text+failures(k.UploadFailed, "an attempt failed", "attempts failed", k.UploadError))
	}
}

// times formats a count: once, 2 times.
func times(n uint64) string {
	if n == 1 {
		return "once"
	}
	return format.Count(n) + " times"
}

// failures describes failures and the reason of the last one, as a suffix; "" if there were none.
func failures(n uint64, one, many, because string) string {
	switch n {
	case 0:
		return ""
	case 1:
		many = one
	default:
		many = format.Count(n) + " " + many
	}
	if because != "" {
		many += ": " + format.CleanText(because)
	}
	return "; " + many
}

// sourceFacts lists the sources, not as a table, whose column of long texts would be left out.
func sourceFacts(s *api.Status) (f document.Facts) {
	for _, src := range s.Sources {
		text := format.Clean(src.State)
		if src.Detail != "" {
			text += ": " + format.CleanText(src.Detail)
		}
		f.Add(format.Clean(src.Name), text)
	}
	return f
}

// agentTable lists how the GPU activity of each process is recorded.
func agentTable(agents []recording.AgentStatus) *document.Table {
	t := &document.Table{Columns: []document.Column{
		document.Right("pid", 0),
		document.Left("State", 0),
		document.Right("Kernels", 0),
		document.Right("Windows", 0),
		document.Right("Dropped", 0),
		document.Right("Stopped", 0), document.Left("CUPTI", 1),
	}}
	for i := range agents {
		a := &agents[i]
		t.Row(strconv.FormatUint(uint64(a.PID), 10), a.State, format.Count(a.Kernels),
			format.Count(a.Windows), format.Count(a.Dropped), format.Span(a.Stopped), format.Clean(a.CUPTI))
	}
	return t
}

// agentFacts returns the messages of agents, which are too long for a table.
func agentFacts(agents []recording.AgentStatus) (f document.Facts) {
	for i := range agents {
		a := &agents[i]
		said := slices.DeleteFunc([]string{a.Detail, a.Slower}, func(s string) bool { return s == "" })
		if len(said) > 0 {
			f.Add(fmt.Sprintf("pid %d", a.PID), format.CleanText(strings.Join(said, "; ")))
		}
	}
	return f
}

// memory formats a size from the API, which is not negative.
func memory(n int64) string { return format.Size(uint64(max(0, n))) }
