// Package sensors adds up what the GPUs' sensors said: energy, clocks and why they were low.
package sensors

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
)

// Summary is what the sensors of the machine's GPUs said.
type Summary struct {
	GPUs []GPU           `json:"gpus"`                 // by index
	Xids []recording.Xid `json:"xid_errors,omitempty"` // that the driver reported
}

// GPU is one GPU over the window.
type GPU struct {
	Index   int    `json:"index"` // as nvidia-smi counts, or among AMD's cards
	UUID    string `json:"uuid"`
	Name    string `json:"name"`
	Used    bool   `json:"used"` // by the target, as far as is known
	Samples int    `json:"samples"`
	Covered uint64 `json:"covered_ns"` // from the first sample to the last

	Power      uint64  `json:"power_mw"` // average over time
	PowerPeak  uint64  `json:"power_peak_mw"`
	PowerLimit uint64  `json:"power_limit_mw"`
	Energy     float64 `json:"energy_j"` // in the time covered

	Temperature int    `json:"temperature_max_c"`
	SMClock     uint64 `json:"sm_clock_mhz"`      // average while kernels ran half of the time at least
	SMClockLow  uint64 `json:"sm_clock_low_mhz"`  // lowest then
	SMClockMax  uint64 `json:"sm_clock_max_mhz"`  // what the GPU can
	Utilization int    `json:"utilization_pct"`   // average
	MemoryUsed  uint64 `json:"memory_used_bytes"` // the most, by all processes
	MemoryTotal uint64 `json:"memory_total_bytes"`
	ECC         uint64 `json:"ecc_errors"` // uncorrected ones in the window

	Busy     float64  `json:"busy_share"` // of the samples: kernels ran half of the time at least
	Throttle []Reason `json:"throttle"`   // why clocks were low while busy, the longest first
	// Throttled says that clocks were lower than the GPU can for one of these reasons, for a tenth of the busy time at
	// least.
	Throttled bool `json:"throttled"`

	// MIG says that the GPU is divided: the values are those of the whole GPU, without utilization, so that Busy, Throttle
	// and Throttled are not known.
	MIG   bool   `json:"mig"`
	Parts []part `json:"parts,omitempty"` // by index

	HeldBy []holder `json:"held_by,omitempty"` // processes of the target, by pid

	PCIe   *Traffic `json:"pcie,omitempty"`   // nil: not known
	NVLink *Traffic `json:"nvlink,omitempty"` // of all links together; nil: not known, or there are none

	PerIteration float64 `json:"energy_per_iteration_j"` // 0: not known
	PerRequest   float64 `json:"energy_per_request_j"`   // 0: not known
	PerToken     float64 `json:"energy_per_token_j"`     // of output; 0: not known
}

// holder is a process that holds memory of a GPU.
type holder struct {
	PID  uint32 `json:"pid"`
	Used uint64 `json:"used_bytes"` // by the driver's count, when it was asked last
}

// part is a part of a divided GPU (MIG).
type part struct {
	Index       int    `json:"index"`
	UUID        string `json:"uuid"`
	Profile     string `json:"profile"` // e.g. 1g.10gb
	MemoryUsed  uint64 `json:"memory_used_bytes"`
	MemoryTotal uint64 `json:"memory_total_bytes"` // 0: not known
	Used        bool   `json:"used"`               // by the target
}

// Traffic is what a kind of link carried, bytes a second, of all programs together.
type Traffic struct {
	Received     uint64 `json:"received_bytes_per_s"` // average of the samples that know it
	ReceivedPeak uint64 `json:"received_peak_bytes_per_s"`
	Sent         uint64 `json:"sent_bytes_per_s"`
	SentPeak     uint64 `json:"sent_peak_bytes_per_s"`
	AtMost       bool   `json:"at_most,omitempty"` // the values are upper bounds
}

// Rates is how much the target does a second; 0 where that is not known.
type Rates struct{ Iterations, Requests, Tokens float64 }

// Reason is why clocks were low.
type Reason struct {
	Reason string  `json:"reason"`
	Share  float64 `json:"share"`        // of busy samples
	Clock  uint64  `json:"sm_clock_mhz"` // average in them
	// Lost is the share of the cycles of all busy samples that the GPU would have had at its highest clock and had not
	// while clocks were low for this reason.
	Lost float64 `json:"lost_share"`
}

// HeldDown returns the reason outside of the work itself, heat or the power supply, for which clocks lost most; false
// where none did. A GPU at its own power limit is not held down: much work makes it so.
func (g *GPU) HeldDown() (Reason, bool) {
	var most Reason
	for _, r := range g.Throttle {
		if r.Reason != recording.PowerLimit && r.Lost > most.Lost {
			most = r
		}
	}
	return most, g.Throttled && most.Lost > 0
}

// What counts as busy, in percent of utilization, and as throttled: of the busy samples, and by how much clocks are
// lower.
const (
	busy          = 50
	leastBusy     = 10 // samples
	throttleShare = 0.1
	throttleDepth = 0.97 // of the GPU's highest clock
)

// Summarize adds up the sensors of a recording; nil where there are none.
func Summarize(rec *recording.Recording, rates Rates) *Summary {
	byGPU := map[string][]recording.Sensor{} // by UUID: the GPUs of each vendor are counted from 0
	for _, s := range rec.Meta.Sensors {
		byGPU[s.UUID] = append(byGPU[s.UUID], s)
	}
	var xids []recording.Xid
	if rec.Meta.Driver != nil {
		xids = rec.Meta.Driver.Xids
	}
	if len(byGPU)+len(xids) == 0 { // one that has fallen off the bus has no samples
		return nil
	}
	used := map[string]bool{}
	if rec.Meta.GPU != nil {
		for _, d := range rec.Meta.GPU.Devices {
			used[d.UUID] = d.UUID != ""
		}
	}
	out := &Summary{GPUs: make([]GPU, 0, len(byGPU)), Xids: xids}
	for _, list := range byGPU {
		g := summarize(list)
		g.Used = used[g.UUID]
		g.addParts(rec.Meta.Driver, used)
		g.addHolders(rec.Meta.Driver)
		if g.Used && !g.MIG { // the power of a divided GPU is that of all its parts
			g.PerIteration, g.PerRequest = g.each(rates.Iterations), g.each(rates.Requests)
			g.PerToken = g.each(rates.Tokens)
		}
		out.GPUs = append(out.GPUs, g)
	}
	slices.SortFunc(out.GPUs, func(a, b GPU) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
	})
	return out
}

// addHolders adds the processes that hold memory of the GPU.
func (g *GPU) addHolders(d *recording.Driver) {
	if d == nil {
		return
	}
	for _, p := range d.Processes {
		if p.UUID == g.UUID {
			g.HeldBy = append(g.HeldBy, holder{p.PID, p.Used})
		}
	}
	slices.SortFunc(g.HeldBy, func(a, b holder) int { return cmp.Compare(a.PID, b.PID) })
}

// addParts adds the parts of a divided GPU, which is used where one of them is.
func (g *GPU) addParts(d *recording.Driver, used map[string]bool) {
	if !g.MIG || d == nil {
		return
	}
	for i := range d.Parts {
		if p := &d.Parts[i]; p.GPUUUID == g.UUID {
			g.Parts = append(g.Parts, part{p.Index, p.UUID, p.Profile, p.MemoryUsed, p.MemoryTotal, used[p.UUID]})
			g.Used = g.Used || used[p.UUID]
		}
	}
	slices.SortStableFunc(g.Parts, func(a, b part) int { return cmp.Compare(a.Index, b.Index) })
}

// each returns the energy of one of so many a second, J.
func (g *GPU) each(perSec float64) float64 {
	if perSec <= 0 {
		return 0
	}
	return float64(g.Power) / 1000 / perSec
}

func summarize(list []recording.Sensor) GPU {
	slices.SortStableFunc(list, func(a, b recording.Sensor) int { return cmp.Compare(a.TS, b.TS) })
	first, last := &list[0], &list[len(list)-1]
	g := GPU{
		Index: last.GPU, UUID: last.UUID, Name: last.Name, Samples: len(list), Covered: last.TS - first.TS,
		PowerLimit: last.PowerLimit, SMClockMax: last.SMClockMax, MemoryTotal: last.MemoryTotal, Throttle: []Reason{},
		MIG: last.MIG,
	}
	if last.Uncorrected > first.Uncorrected {
		g.ECC = last.Uncorrected - first.Uncorrected
	}
	g.PCIe = traffic(list, recording.PCIeLink, func(s *recording.Sensor) (rx, tx uint64) { return s.PCIeRx, s.PCIeTx })
	g.NVLink = traffic(list, recording.NVLink,
		func(s *recording.Sensor) (rx, tx uint64) { return s.NVLinkRx, s.NVLinkTx })
	var utilization, clocks, power float64
	n, reasons := 0, recording.ClockReasons()
	counts, sums, lost := make([]int, len(reasons)), make([]float64, len(reasons)), make([]float64, len(reasons))
	deep := 0
	for i := range list {
		s := &list[i]
		power += float64(s.Power)
		g.PowerPeak, g.Temperature, g.MemoryUsed = max(g.PowerPeak, s.Power),
			max(g.Temperature, s.Temperature), max(g.MemoryUsed, s.MemoryUsed)
		utilization += float64(s.Utilization)
		if i > 0 { // the trapezoid between two samples
			g.Energy += float64(s.Power+list[i-1].Power) / 2 / 1000 * float64(s.TS-list[i-1].TS) / 1e9
		}
		if s.Utilization < busy || s.SMClock == 0 {
			continue
		}
		n++
		clocks += float64(s.SMClock)
		if g.SMClockLow == 0 || s.SMClock < g.SMClockLow {
			g.SMClockLow = s.SMClock
		}
		low := false
		for k, r := range reasons {
			if s.Reasons&r.Bit != 0 {
				counts[k]++
				sums[k] += float64(s.SMClock)
				lost[k] += max(0, 1-float64(s.SMClock)/float64(max(1, s.SMClockMax)))
				low = true
			}
		}
		if low && float64(s.SMClock) < throttleDepth*float64(s.SMClockMax) {
			deep++
		}
	}
	g.Utilization, g.Busy = int(utilization/float64(len(list))+0.5), float64(n)/float64(len(list))
	if g.Power = uint64(power/float64(len(list)) + 0.5); g.Covered > 0 {
		g.Power = uint64(g.Energy/(float64(g.Covered)/1e9)*1000 + 0.5)
	}
	if n == 0 {
		return g
	}
	g.SMClock = uint64(clocks/float64(n) + 0.5)
	for k, count := range counts {
		if count > 0 {
			g.Throttle = append(g.Throttle, Reason{
				reasons[k].Name,
				float64(count) / float64(n),
				uint64(sums[k]/float64(count) + 0.5),
				lost[k] / float64(n),
			})
		}
	}
	slices.SortStableFunc(g.Throttle, func(a, b Reason) int { return cmp.Compare(b.Share, a.Share) })
	g.Throttled = n >= leastBusy && float64(deep) >= throttleShare*float64(n)
	return g
}

// traffic adds up what the links of a kind carried; nil where no sample knows it.
func traffic(list []recording.Sensor, kind recording.Links, of func(*recording.Sensor) (rx, tx uint64)) *Traffic {
	var t Traffic
	var rx, tx float64
	n := 0
	for i := range list {
		if list[i].Links&kind == 0 {
			continue
		}
		received, sent := of(&list[i])
		t.AtMost = t.AtMost || kind == recording.PCIeLink && list[i].Links&recording.PCIeAtMost != 0
		t.ReceivedPeak, t.SentPeak = max(t.ReceivedPeak, received), max(t.SentPeak, sent)
		rx, tx = rx+float64(received), tx+float64(sent)
		n++
	}
	if n == 0 {
		return nil
	}
	t.Received, t.Sent = uint64(rx/float64(n)+0.5), uint64(tx/float64(n)+0.5)
	return &t
}
