package report

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/sensors"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/report/document"
)

// addSensors reports what the GPUs drew, and whether their clocks were held down.
func addSensors(d *document.Document, m *Model) {
	if m.Sensors == nil {
		return
	}
	t := &document.Table{Columns: []document.Column{
		document.Left("GPU", 0),
		document.Right("Power", 0),
		document.Right("Peak", 3),
		document.Right("Limit", 2),
		document.Right("Energy", 1),
		document.Right("Per iteration", 1),
		document.Right("Per request", 1),
		document.Right("Per token", 1),
		document.Right("Max °C", 3),
		document.Right("SM clock busy", 0),
		document.Right("Can", 2),
		document.Right("Utilization", 1),
		document.Right("Memory used", 2),
	}}
	var lines document.Bullets
	known := map[string]bool{}
	of := func(what string, j float64) string {
		known[what] = known[what] || j > 0
		return joules(j)
	}
	for i := range m.Sensors.GPUs {
		g := &m.Sensors.GPUs[i]
		clock, can := format.Nothing, format.Nothing
		if g.SMClock > 0 {
			clock, can = fmt.Sprintf("%d MHz", g.SMClock), fmt.Sprintf("%d MHz", g.SMClockMax)
		}
		heat := format.Nothing
		if g.Temperature > 0 {
			heat = strconv.Itoa(g.Temperature)
		}
		utilization := format.Nothing
		if !g.MIG {
			utilization = fmt.Sprintf("%d%%", g.Utilization)
		}
		t.Row(fmt.Sprintf("%d %s", g.Index, format.Clean(g.Name)), watts(g.Power), watts(g.PowerPeak),
			watts(g.PowerLimit), joules(g.Energy), of("Per iteration", g.PerIteration),
			of("Per request", g.PerRequest), of("Per token", g.PerToken), heat, clock, can, utilization,
			format.Size(g.MemoryUsed))
		lines = append(lines, clockLines(g)...)
	}
	lines = append(lines, holderLines(m)...)
	for i := range m.Sensors.Xids {
		lines = append(lines, xidText(&m.Sensors.Xids[i], m.Summary.Window.From))
	}
	for _, what := range []string{"Per iteration", "Per request", "Per token"} {
		if !known[what] {
			t.Drop(what)
		}
	}
	t.Note = "Read ten times a second, of the whole machine: other programs on these GPUs count as well."
	d.AddTable("GPU power and clocks", t)
	if len(lines) > 0 {
		d.Add(lines)
	}
	addTraffic(d, m.Sensors.GPUs)
}

// holderLines reports what processes hold of GPUs. Those whose framework tells its memory are left out: the section on
// memory compares the two.
func holderLines(m *Model) (lines []string) {
	if m.Sensors == nil {
		return nil
	}
	known := map[uint32]bool{}
	if m.Memory != nil {
		for i := range m.Memory.Devices {
			known[m.Memory.Devices[i].PID] = m.Memory.Devices[i].Process > 0 || known[m.Memory.Devices[i].PID]
		}
	}
	for i := range m.Sensors.GPUs {
		g := &m.Sensors.GPUs[i]
		for _, h := range g.HeldBy {
			if !known[h.PID] {
				lines = append(lines, fmt.Sprintf("Process %d holds %s of GPU %d by the driver's count.", h.PID,
					format.Size(h.Used), g.Index))
			}
		}
	}
	return lines
}

// addTraffic adds a table of what the links of the GPUs carried, where that is known.
func addTraffic(d *document.Document, gpus []sensors.GPU) {
	t := &document.Table{Columns: []document.Column{
		document.Left("GPU", 0),
		document.Left("Link", 0),
		document.Right("Received", 0),
		document.Right("Peak received", 1),
		document.Right("Sent", 0),
		document.Right("Peak sent", 1),
	}}
	for i := range gpus {
		g := &gpus[i]
		for _, link := range []struct {
			name string
			of   *sensors.Traffic
		}{{"PCIe", g.PCIe}, {"NVLink", g.NVLink}} {
			if of := link.of; of != nil {
				name := link.name
				if of.AtMost {
					name += ", at most"
				}
				t.Row(fmt.Sprint(g.Index), name, Rate(of.Received), Rate(of.ReceivedPeak), Rate(of.Sent), Rate(of.SentPeak))
			}
		}
	}
	t.Note = "By the driver's counters, of all programs. NVIDIA: PCIe during 20 ms once a second, NVLink in averages of " +
		"10 s. AMD: PCIe over a second, at most, because packets can be smaller than counted."
	d.AddTable("What the links of the GPUs carried", t)
}

// Rate writes a rate of bytes in the units of links.
func Rate(bytesPerSec uint64) string {
	switch f := float64(bytesPerSec); {
	case f >= 1e9:
		return fmt.Sprintf("%.1f GB/s", f/1e9)
	default:
		return fmt.Sprintf("%.0f MB/s", f/1e6)
	}
}

func clockLines(g *sensors.GPU) (lines []string) {
	if g.MIG {
		lines = append(lines, partsLine(g))
	}
	if g.Throttled {
		var why []string
		for _, r := range g.Throttle {
			why = append(why,
				fmt.Sprintf("%s in %s of the busy time (%d MHz)", r.Reason, format.Percent(r.Share), r.Clock))
		}
		lines = append(
			lines,
			fmt.Sprintf(
				"GPU %d ran slower than it can: %d of %d MHz while busy, down to %d MHz. The driver's reasons: %s.",
				g.Index,
				g.SMClock,
				g.SMClockMax,
				g.SMClockLow,
				strings.Join(why, ", "),
			),
		)
	}
	if g.ECC > 0 {
		lines = append(lines, fmt.Sprintf("GPU %d had %s that could not be corrected.",
			g.Index, format.Plural(g.ECC, "memory error", "memory errors")))
	}
	return lines
}

// partsLine describes what is known of a divided GPU, and what its parts hold.
func partsLine(g *sensors.GPU) string {
	text := fmt.Sprintf("GPU %d is divided (MIG): power, clocks and temperature are those of the whole GPU, with all its "+
		"parts. The driver gives no utilization, so it is not known whether clocks were low while it worked.", g.Index)
	for i := range g.Parts {
		p := &g.Parts[i]
		whose := ""
		if p.Used {
			whose = ", which the program uses,"
		}
		text += fmt.Sprintf(" Part %d (%s)%s holds %s", p.Index, format.Clean(p.Profile), whose, format.Size(p.MemoryUsed))
		if p.MemoryTotal > 0 {
			text += " of " + format.Size(p.MemoryTotal)
		}
		text += "."
	}
	return text
}

// xidText reports what the driver reported of a GPU.
func xidText(x *recording.Xid, from uint64) string {
	whose := ""
	if x.PID != 0 {
		whose = fmt.Sprintf(" in the work of process %d", x.PID)
	}
	return fmt.Sprintf("The driver reported Xid %d%s of %s%s, %s into the window: %s",
		x.Code, xidMeaning(x.Code), xidPlace(x.GPU, x.Bus), whose, format.Span(x.TS-min(x.TS, from)),
		format.Clean(x.Text))
}

// XidText reports how often the driver reported an error of a GPU.
func XidText(x *recording.XidCount) string {
	return fmt.Sprintf("The driver reported Xid %d%s of %s %s",
		x.Code, xidMeaning(x.Code), xidPlace(x.GPU, x.Bus), format.Plural(x.Count, "time", "times"))
}

func xidPlace(gpu int, bus string) string {
	if gpu < 0 {
		return "the GPU at PCI " + format.Clean(bus)
	}
	return "GPU " + strconv.Itoa(gpu)
}

// xidMeaning says in brackets what a code means; "" where that is not known here.
func xidMeaning(code int) string {
	if meaning := sensors.XidMeaning(code); meaning != "" {
		return " (" + meaning + ")"
	}
	return ""
}

func watts(mw uint64) string {
	if mw == 0 {
		return format.Nothing
	}
	return fmt.Sprintf("%.0f W", float64(mw)/1000)
}

func joules(j float64) string {
	switch {
	case j == 0:
		return format.Nothing
	case j >= 10_000:
		return fmt.Sprintf("%.1f kJ", j/1000)
	case j >= 10:
		return fmt.Sprintf("%.0f J", j)
	case j >= 0.01:
		return fmt.Sprintf("%.3g J", j)
	}
	return fmt.Sprintf("%.3g mJ", j*1000)
}
