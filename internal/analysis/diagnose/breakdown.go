package diagnose

import (
	"cmp"
	"math"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// measured is the breakdown of an interval: Did and Idle sum to Time exactly.
type measured struct {
	Time   uint64 // ns
	Window uint64
	excess uint64 // ns: recorded, and no part of Time (see boundNoWork)
	Did    [doings]uint64
	Idle   [cause.Count]uint64
	copied uint64 // ns: copies to and from somewhere else, whether a kernel hid them or not
	talked uint64 // ns: communication with other GPUs, likewise
	// who copies, by thread, and with which call, by function: those that hold their caller, and the others
	heldBy, freeBy copiers
	// kernels, their time summed and the shapes of the small ones, for the words about them
	kernels, kernelTime uint64
	small, smallBlocks  uint64 // ns; ns times blocks
	sms                 uint64 // the most of a device
	poor                [poorKinds]runs
	computing           float64 // the share of its time that the busiest device computes
}

// most returns the maximum speed-up with the kernels as they are.
func (m *measured) most() float64 {
	if m.computing == 0 {
		return math.Inf(1)
	}
	return 1 / m.computing
}

func (m *measured) sum(from, to doing) uint64 {
	n := uint64(0)
	for d := from; d <= to; d++ {
		n += m.Did[d]
	}
	return n
}

func (m *measured) compute() uint64 { return m.sum(fullKernel, tinyKernel) }

// copies returns the time of copies without a kernel at the same time.
func (m *measured) copies() uint64 { return m.sum(heldToDevice, resultCopy) }

func (m *measured) toHost() uint64 {
	return m.Did[heldToHost] + m.Did[freeToHost] + m.Did[resultCopy]
}

// exposed returns the time of communication without a computing kernel at the same time.
func (m *measured) exposed() uint64 { return m.Did[communicating] }

// recorded returns the share of the time that was recorded.
func (m *measured) recorded() float64 { return share(m.Time+m.excess, m.Window) }

func (m *measured) busy() uint64 { return m.sum(fullKernel, setting) }

// idle returns the time in which nothing ran.
func (m *measured) idle() uint64 { return m.Time - m.busy() }

// held returns the part of copies that blocked a thread.
func (m *measured) held() uint64 { return m.Did[heldToDevice] + m.Did[heldToHost] }

// free returns the part of copies that could have overlapped with kernels.
func (m *measured) free() uint64 { return m.Did[freeToDevice] + m.Did[freeToHost] + m.Did[peerCopy] }

// measure breaks down the time of each device and of all together, and groups the steps by cause.
func (a *analysis) measure(d *Diagnosis, did []deviceWork) {
	window := a.within.To - a.within.From
	if a.subject != aboutGPUs {
		a.total.Window = window
		a.addMainThread()
		d.Breakdown = a.total.breakdown(a)
		return
	}
	devices := make([]measured, len(a.t.Devices))
	for i := range devices {
		devices[i] = did[i].measured(window)
	}
	a.steps(devices)
	a.leaveOut(d, devices)
	a.boundNoWork(devices)
	for i := range devices {
		devices[i].close()
		a.total.computing = max(a.total.computing, share(devices[i].compute(), devices[i].Time))
		d.Devices = append(d.Devices, a.device(&a.t.Devices[i], &devices[i]))
		a.total.add(&devices[i])
	}
	d.Breakdown = a.total.breakdown(a)
}

// steps adds the steps of all gaps to their devices.
func (a *analysis) steps(devices []measured) {
	for i := range a.w.Gaps {
		g := &a.w.Gaps[i]
		a.gap(devices, g, a.w.Steps[g.First:g.Last])
	}
	for i := range a.w.Plain {
		s := &a.w.Plain[i]
		devices[s.Device].Idle[cause.LaunchOverhead] += s.Time
		a.group(cause.LaunchOverhead).addPlain(s)
	}
}

// gap adds the steps of a gap.
func (a *analysis) gap(devices []measured, g *gap.Gap, steps []gap.Step) {
	if g.Device < 0 || int(g.Device) >= len(devices) {
		return
	}
	for i := range steps {
		a.note(&devices[g.Device], &steps[i], g)
	}
}

// group returns the steps of a cause.
func (a *analysis) group(id cause.ID) *group {
	if a.groups[id] == nil {
		a.groups[id] = newGroup(id)
	}
	return a.groups[id]
}

// addMainThread uses the steps of the main thread in place of the gaps of a GPU.
func (a *analysis) addMainThread() {
	if a.w.Main == nil {
		return
	}
	steps := a.w.Steps[a.w.Main.First:a.w.Main.Last]
	for i := range steps {
		a.total.Time += a.note(&a.total, &steps[i], nil)
	}
}

func length(s *gap.Step) uint64 { return s.To - min(s.From, s.To) }

// note adds the part of a step within the breakdown to a measure and to its group, and returns the length of that part
// in ns.
func (a *analysis) note(m *measured, s *gap.Step, g *gap.Gap) uint64 {
	if s.From < a.within.From || s.To > a.within.To {
		cut := *s
		cut.From, cut.To = max(s.From, a.within.From), min(s.To, a.within.To)
		s = &cut
	}
	n := length(s)
	if n == 0 {
		return 0
	}
	id := s.Cause
	if id >= cause.Count {
		id = cause.Unknown
	}
	m.Idle[id] += n
	a.group(id).add(a, s, g)
	return n
}

// close makes a partition of it, whatever the gaps are: steps tile the gaps, and gaps are what no activity
// covers, so that this changes nothing unless one of the two is wrong.
func (m *measured) close() {
	left := m.idle()
	for id := range m.Idle {
		m.Idle[id] = min(m.Idle[id], left)
		left -= m.Idle[id]
	}
	m.Idle[cause.Unknown] += left
}

func (m *measured) add(o *measured) {
	m.Time += o.Time
	m.Window += o.Window
	m.excess += o.excess
	m.copied += o.copied
	m.talked += o.talked
	m.heldBy.merge(&o.heldBy)
	m.freeBy.merge(&o.freeBy)
	for i := range m.Did {
		m.Did[i] += o.Did[i]
	}
	for i := range m.Idle {
		m.Idle[i] += o.Idle[i]
	}
	m.kernels, m.kernelTime = m.kernels+o.kernels, m.kernelTime+o.kernelTime
	m.small, m.smallBlocks, m.sms = m.small+o.small, m.smallBlocks+o.smallBlocks, max(m.sms, o.sms)
	for i := range m.poor {
		m.poor[i].runs += o.poor[i].runs
		m.poor[i].time += o.poor[i].time
	}
}

func (a *analysis) device(dev *timeline.Device, m *measured) Device {
	out := Device{PID: a.t.Processes[dev.Process].PID, ID: dev.ID, Breakdown: m.breakdown(a)}
	if dev.Info != nil {
		out.Name = dev.Info.Name
	}
	return out
}

// breakdown converts a measure to parts.
func (m *measured) breakdown(a *analysis) Breakdown {
	b := Breakdown{Time: m.Time, Window: m.Window, Share: m.recorded(), Parts: []Part{}, People: []Part{}}
	if a.subject == aboutGPUs || a.subject == aboutSilent {
		for _, p := range []Part{
			{Key: "compute", Name: "GPU compute", Time: m.compute()},
			{Key: "h2d", Name: "copies to the GPU", Time: m.sum(heldToDevice, freeToDevice)},
			{Key: "d2h", Name: "copies from the GPU", Time: m.toHost()},
			{Key: "d2d", Name: "copies on and between GPUs", Time: m.Did[peerCopy] + m.Did[ownCopy]},
			{Key: "set", Name: "memory sets", Time: m.Did[setting]},
		} {
			p.Busy, p.Share = true, share(p.Time, m.Time)
			b.Parts = append(b.Parts, p)
			if n := m.exposed(); p.Key == "compute" && n > 0 {
				b.Parts = append(
					b.Parts,
					Part{
						Key:   "communication",
						Name:  "communication between GPUs",
						Busy:  true,
						Time:  n,
						Share: share(n, m.Time),
					},
				)
			}
		}
	}
	b.Parts = append(b.Parts, m.causes(a)...)
	b.People = m.threadParts(a)
	return b
}

// causes returns the parts of idle time, the longest first.
func (m *measured) causes(a *analysis) []Part {
	var out []Part
	for id, n := range m.Idle {
		if n > 0 {
			row := &a.table[id]
			out = append(
				out,
				Part{Key: row.Key, Name: a.partName(row), Cause: cause.ID(id), Time: n, Share: share(n, m.Time)},
			)
		}
	}
	slices.SortStableFunc(out, func(x, y Part) int { return cmp.Compare(y.Time, x.Time) })
	return out
}

// partName is a cause's title; of one that speaks of the GPU, where nobody saw that, what the thread did.
func (a *analysis) partName(row *cause.Cause) string {
	if !a.seen() {
		switch row.ID {
		case cause.Unknown:
			return "it is not known what the thread did"
		case cause.LaunchOverhead:
			return "launching"
		case cause.HostSync:
			return "waiting for the GPU"
		}
	}
	return row.Title
}

// threadParts says the same in the words that people know.
func (m *measured) threadParts(a *analysis) []Part {
	var by [cause.OnGPU + 1]uint64
	for id, n := range m.Idle {
		by[a.table[id].Group] += n
	}
	var parts []Part
	if a.seen() {
		parts = []Part{
			{Key: "cpu", Name: "CPU preprocessing", Time: by[cause.CPUWork]},
			{Key: "h2d", Name: "H2D copy", Busy: true, Time: m.sum(heldToDevice, freeToDevice)},
			{Key: "compute", Name: "GPU compute", Busy: true, Time: m.compute()},
			{Key: "d2h", Name: "D2H copy", Busy: true, Time: m.toHost()},
			{
				Key:  "device-memory",
				Name: "GPU memory",
				Busy: true,
				Time: m.Did[peerCopy] + m.Did[ownCopy] + m.Did[setting],
			},
		}
		if n := m.exposed(); n > 0 {
			parts = slices.Insert(
				parts,
				3,
				Part{Key: "communication", Name: "communication between GPUs", Busy: true, Time: n},
			)
		}
	} else { // the main thread's time: while it waits for a GPU that nobody watched, that one may be busy
		by[a.table[cause.HostSync].Group] -= m.Idle[cause.HostSync]
		parts = []Part{
			{Key: "cpu", Name: "CPU computing", Time: by[cause.CPUWork]},
			{Key: "gpu", Name: "waiting for the GPU", Time: m.Idle[cause.HostSync]},
		}
	}
	parts = append(parts,
		Part{Key: "framework", Name: "framework overhead", Time: by[cause.Framework]},
		Part{Key: "waiting", Name: "waiting", Time: by[cause.HostWaits]},
		Part{Key: "idle", Name: "nothing to do", Time: by[cause.Offered]},
		Part{Key: "unknown", Name: "not known why", Time: by[cause.Other] + by[cause.OnGPU]})
	for i := range parts {
		parts[i].Share = share(parts[i].Time, m.Time)
	}
	return parts
}
