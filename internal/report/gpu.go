package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/summary/gpu"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/report/document"
)

// How much of the GPU's side a text shows; JSON has more.
const (
	kernelRows  = 12
	gpuRows     = 8
	maxDevices  = 8 // in the first lines
	closeEnough = 0.01
)

// gpuScope reports which time the report is about.
func gpuScope(m *Model) string {
	if m.GPU.Activity.Share >= always {
		for i := range m.GPU.Devices {
			if m.GPU.Devices[i].Busy.Coverage.Share < always {
				return "GPU activity was recorded all the time, but not of every process: the share of a GPU that " +
					"several use is of the time in which all of them were recorded."
			}
		}
		return "GPU activity was recorded all the time."
	}
	return fmt.Sprintf(
		"GPU activity was recorded in windows: %s of the %s. What is said of the GPU is about these windows, and "+
			"nothing is scaled up; calls that can wait (synchronisation, copies, allocation, graph launches) were "+
			"recorded all the time.",
		format.Span(m.GPU.Activity.Time),
		format.Span(m.Summary.Window.Length),
	)
}

// gpuShort is what a person wants to know first of the GPU.
func gpuShort(m *Model) document.Facts {
	var f document.Facts
	g := m.GPU
	if g == nil {
		return f
	}
	if !g.Recorded {
		f.Add("GPU", "not recorded: "+notRecorded(m))
		return f
	}
	for i := range g.Devices[:min(len(g.Devices), maxDevices)] {
		f.Add(deviceLabel(g, i), busyText(m, &g.Devices[i].Busy))
	}
	if len(g.Devices) == 0 {
		f.Add("GPU busy", busyText(m, &g.Busy))
	}
	if n := len(g.Devices) - maxDevices; n > 0 {
		f.Add("Other GPUs", fmt.Sprintf("%d; all together %s", n, busyText(m, &g.Busy)))
	}
	return f
}

func deviceLabel(g *gpu.Summary, i int) string {
	if len(g.Devices) == 1 {
		return "GPU busy"
	}
	return fmt.Sprintf("GPU %d busy", g.Devices[i].ID)
}

// busyText reports how busy a device was, and of which time.
func busyText(m *Model, b *gpu.Busy) string {
	if b.Coverage.Time == 0 {
		return "not known: its processes were never recorded at the same time"
	}
	s := format.Percent(b.Share)
	switch {
	case b.Coverage.Dropped > 0:
		s = "at least " + s
	case b.MaxShare > b.Share+closeEnough:
		s += " to " + format.Percent(b.MaxShare)
	}
	s += " of the " + format.Span(b.Coverage.Time) + " recorded"
	if b.Coverage.Share < always {
		s += fmt.Sprintf(" (%s, %s of the report's %s)",
			format.Plural(b.Coverage.Windows, "window", "windows"), format.Percent(b.Coverage.Share),
			format.Span(m.Summary.Window.Length))
	}
	if b.Coverage.Dropped > 0 {
		s += fmt.Sprintf("; %s lost, so the rest is not known to be idle",
			format.Plural(b.Coverage.Dropped, "record was", "records were"))
	}
	return s
}

// notRecorded reports why nothing is known of the GPU, from what the agents say.
func notRecorded(m *Model) string {
	g := m.GPU
	if tool, ok := importedFrom(m.Version); ok {
		return "the file of " + format.Clean(tool) + " has nothing of it"
	}
	if g.Mode == "off" {
		return "GPU records are off (--gpu off)"
	}
	for _, a := range g.Agents {
		if a.State != "running" {
			return agentText(&a)
		}
	}
	if len(g.Agents) == 0 {
		return "no process of the target has an agent"
	}
	return "no window was open in the time of this report; ask for a longer report, or use --gpu continuous"
}

// agentText reports what the agent of a process does, and what to do about it.
func agentText(a *recording.Agent) string {
	s := format.Clean(a.State)
	switch a.State {
	case "running":
		s = "running"
	case "waiting":
		s = "waiting to be loaded"
	case "refused":
		s = "refused"
	case "dormant":
		s = "loaded, but off"
	case "gone":
		s = "ended with its process"
	}
	if a.Detail != "" {
		s += ": " + format.Clean(a.Detail)
	}
	if a.Stopped > 0 {
		s += fmt.Sprintf("; one thread was stopped for %s to load it", format.Span(a.Stopped))
	}
	if a.CUPTI != "" && a.Version > 0 {
		s += fmt.Sprintf("; CUPTI %s at %s", version(a.Version), format.ShortPath(format.Clean(a.CUPTI), 48))
	}
	if a.Slower != "" {
		s += "; " + format.Clean(a.Slower)
	}
	if a.Dropped > 0 {
		s += "; " + format.Plural(a.Dropped, "record", "records") + " dropped"
	}
	return s
}

// version writes what cuptiGetVersion gives: 130001 is 13.0.1, and 26 is API version 26 (CUDA 12.9 and before).
func version(v uint32) string {
	if v < 1000 {
		return fmt.Sprintf("API version %d", v)
	}
	return fmt.Sprintf("%d.%d.%d", v/10000, v%10000/100, v%100)
}

// addGPU puts what the GPUs did in front of the CPU's side.
func addGPU(d *document.Document, m *Model, rows int) {
	g := m.GPU
	if g == nil {
		return
	}
	if facts := gpuFacts(m); len(facts) > 0 {
		d.Add(document.Heading("GPU"), facts)
	}
	few := min(rows, max(gpuRows, rows/4))
	if !g.Recorded {
		d.AddTable("Named ranges", rangeTable(m, few)) // scopes need no agent
		return
	}
	d.AddTable("GPU devices", deviceTable(m))
	d.AddTable("Kernels", kernelTable(m, min(rows, max(kernelRows, rows/2))))
	d.AddTable("GPU copies", gpuCopyTable(m))
	d.AddTable("Copies between GPUs", peerTable(m))
	d.AddTable("NUMA nodes of GPUs", topologyTable(m))
	d.AddTable("Links between GPUs", linkTable(m))
	d.AddTable("GPU streams", gpuStreamTable(m, few))
	d.AddTable("Waits for the GPU", syncTable(m, few))
	d.AddTable("Named ranges", rangeTable(m, few))
}

// gpuFacts reports what can be said in a line each.
func gpuFacts(m *Model) document.Facts {
	g := m.GPU
	var f document.Facts
	for i := range g.Agents[:min(len(g.Agents), maxDevices)] {
		f.Add(agentLabel(g, i), agentText(&g.Agents[i]))
	}
	if n := len(g.Agents) - maxDevices; n > 0 {
		f.Add("Other agents", fmt.Sprintf("%d; --format json has all", n))
	}
	if !g.Recorded {
		return f
	}
	f.Add("Launches", gpuLaunchText(g))
	if g.Latency.Count > 0 {
		f.Add("Launch to start", fmt.Sprintf("p50 %s, p99 %s (%s)",
			format.Span(g.Latency.P50), format.Span(g.Latency.P99),
			format.Plural(g.Latency.Count, "launch", "launches")))
	}
	if g.Latency.Count > 0 && g.Queue.Coverage.Whole() {
		f.Add("Queue", fmt.Sprintf("%.1f launches under way on average, %s at most; empty %s of the time",
			g.Queue.Mean, format.Count(g.Queue.Max), format.Percent(g.Queue.Empty)))
	}
	if g.Graphs.Kernels > 0 {
		f.Add("CUDA graphs", graphText(g))
	}
	if g.Kernels.Tiny > 0 {
		f.Add("Tiny kernels", fmt.Sprintf(
			"%s of the kernels are shorter than %s; they are %s of the kernels' time",
			format.Percent(part(g.Kernels.Tiny, g.Kernels.Count)),
			format.Span(gpu.TinyBelow),
			format.Percent(part(g.Kernels.TinyTime, g.Kernels.Time)),
		))
	}
	if text := copyShare(g); text != "" && g.Activity.Whole() {
		f.Add("Copies alone", text)
	}
	if g.Sets.Count > 0 {
		f.Add("Memsets", fmt.Sprintf("%s of %s in %s",
			format.Count(g.Sets.Count), format.Size(g.Sets.Bytes), format.Span(g.Sets.Time)))
	}
	f.Add("Calls behind them", linkText(&g.Links))
	f.Add("Clock error", clockText(m))
	if text := overheadText(g.Overhead); text != "" {
		f.Add("Overhead", text)
	}
	return f
}

func part(n, of uint64) float64 {
	if of == 0 {
		return 0
	}
	return float64(n) / float64(of)
}

func agentLabel(g *gpu.Summary, i int) string {
	if len(g.Agents) == 1 {
		return "Agent"
	}
	return fmt.Sprintf("Agent in %d", g.Agents[i].PID)
}

func gpuLaunchText(g *gpu.Summary) string {
	l := &g.Launches
	if l.Coverage.Time == 0 {
		return "not recorded"
	}
	s := fmt.Sprintf("%s in %s (%s)",
		launchedText(l.Kernels, l.Graphs), format.Span(l.Coverage.Time), format.Rate(l.PerSecond))
	if l.Timed > 0 {
		s += fmt.Sprintf("; the calls took p50 %s, p99 %s", format.Span(l.P50), format.Span(l.P99))
	}
	return s
}

func launchedText(kernels, graphs uint64) string {
	var parts []string
	if kernels > 0 || graphs == 0 {
		parts = append(parts, format.Plural(kernels, "kernel launch", "kernel launches"))
	}
	if graphs > 0 {
		parts = append(parts, format.Plural(graphs, "graph launch", "graph launches"))
	}
	return strings.Join(parts, " and ")
}

func graphText(g *gpu.Summary) string {
	s := fmt.Sprintf("%s of the kernels (%s of their time) came out of graphs",
		format.Percent(g.Graphs.Share), format.Percent(g.Graphs.TimeShare))
	if g.Graphs.Launches > 0 {
		s += fmt.Sprintf("; %s, %.0f activities each",
			format.Plural(g.Graphs.Launches, "graph launch", "graph launches"), g.Graphs.Nodes)
	}
	return s
}

// copyShare reports for how long copies ran while no kernel did.
func copyShare(g *gpu.Summary) string {
	time, exposed := uint64(0), uint64(0)
	for i := range g.Copies {
		time += g.Copies[i].Time
		exposed += g.Copies[i].Exposed
	}
	if time == 0 {
		return ""
	}
	return fmt.Sprintf("%s of %s: copies ran and no kernel did", format.Span(exposed), format.Span(time))
}

func linkText(l *gpu.Links) string {
	if l.Activities == 0 {
		return "nothing ran"
	}
	s := fmt.Sprintf("known for %s of %s",
		format.Percent(l.Share), format.Plural(l.Activities, "activity", "activities"))
	if l.ByOrder > 0 {
		s += fmt.Sprintf("; of %s by order only, with a confidence of %s on average",
			format.Count(l.ByOrder), format.Percent(l.Confidence))
	}
	return s
}

// clockText gives the bounds of the clock's error.
func clockText(m *Model) string {
	c := &m.GPU.Clock
	of := "by " + format.Plural(c.Pairs, "pair", "pairs") + " of times of calls and GPU"
	switch {
	case c.Pairs == 0:
		return "not known: there were no times to compare"
	case c.Error > 0:
		return fmt.Sprintf("%s or more, %s (margin %s)", format.Span(c.Error), of, format.Span(m.Margin))
	case c.Bound == 0:
		return "none seen, " + of
	}
	return fmt.Sprintf("%s at most, %s", format.Span(c.Bound), of)
}

func overheadText(list []gpu.Overhead) string {
	var parts []string
	for i := range list[:min(len(list), maxNamed)] {
		o := &list[i]
		parts = append(parts,
			fmt.Sprintf("%s %s (%s)", o.Kind, format.Span(o.Time), format.Plural(o.Count, "time", "times")))
	}
	return strings.Join(parts, ", ")
}

// Doubts about the GPU's records that only whoever reads them can have.
const (
	clockError     loss.Reason = "clock_error"
	outsideWindows loss.Reason = "gpu_outside_windows"
)

func gpuDoubts(rec *recording.Recording, m *Model) []ownDoubt {
	if m.GPU == nil {
		return nil
	}
	var out []ownDoubt
	if c := m.GPU.Clock; c.Error > m.Margin {
		out = append(out, ownDoubt{
			loss.Kind{
				Reason:   clockError,
				Severity: loss.Warning,
				Means: "the times of the GPU and of calls do not fit together: what happened on one side is later " +
					"or earlier than it looks from the other",
				Do: "check the GPU's clock and driver; --gpu off leaves it out",
			},
			loss.Loss{
				Count: 1,
				Detail: fmt.Sprintf(
					"the error is %s or more, and the margin %s: take %s as the uncertainty of every launch latency "+
						"and gap",
					format.Span(c.Error),
					format.Span(m.Margin),
					format.Span(c.Error),
				),
			},
		})
	}
	if n := m.GPU.Activity.Dropped; n > 0 && !carried(rec, loss.GPURingFull, loss.GPURecordsDropped) {
		out = append(out, ownDoubt{loss.Describe(loss.GPURecordsDropped), loss.Loss{Count: n}})
	}
	if n := m.GPU.Outside; n > 0 {
		out = append(out, ownDoubt{
			loss.Kind{
				Reason:   outsideWindows,
				Severity: loss.Info,
				Means:    "GPU records from outside the windows in which all was recorded were left out",
			},
			loss.Loss{Count: uint64(n)},
		})
	}
	return out
}

// carried reports whether the recording itself names one of the reasons.
func carried(rec *recording.Recording, reasons ...loss.Reason) bool {
	return slices.ContainsFunc(rec.Meta.Losses,
		func(l loss.Loss) bool { return l.Count > 0 && slices.Contains(reasons, l.Reason) })
}

// gpuReading explains what a reader could get wrong.
func gpuReading(m *Model) document.Bullets {
	if m.GPU == nil || !m.GPU.Recorded {
		return nil
	}
	b := document.Bullets{
		"GPU busy is the time in which at least one kernel, copy or memset of the target ran: a union, so that what " +
			"runs at once counts once. Work of other programs on the same GPU is not seen.",
		"Kernel times are sums, and kernels that run at once can exceed the busy time together.",
	}
	if inWindows(m.Summary.Windows) {
		b = append(
			b,
			"Where records are taken in windows, launches are counted in windows only, and their share of wall is of "+
				"that time. A range of busy shares says that work launched before a window, or not done at its end, "+
				"could have run unseen.",
		)
	}
	return b
}
