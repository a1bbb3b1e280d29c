package gpu

import (
	"cmp"

	"github.com/inferscope/inferscope/internal/analysis/summary/histogram"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// union measures the union of intervals that come in the order of their beginnings.
type union struct{ end uint64 }

// add returns the part of [from, to) that is new.
func (u *union) add(from, to uint64) (uint64, uint64) {
	from = max(from, u.end)
	if to <= from {
		return from, from
	}
	u.end = to
	return from, to
}

// clipper cuts intervals that come in the order of their beginnings to spans of time.
type clipper struct {
	spans timeline.Spans
	at    int
}

// clip returns the part of [from, to) in the spans; of several, the first.
func (c *clipper) clip(from, to uint64) (uint64, uint64) {
	for c.at < len(c.spans) && c.spans[c.at].To <= from {
		c.at++
	}
	if c.at == len(c.spans) {
		return from, from
	}
	from, to = max(from, c.spans[c.at].From), min(to, c.spans[c.at].To)
	return from, max(from, to)
}

// meter measures for how long something ran inside spans of time.
type meter struct {
	clip    clipper
	all     union
	kinds   [timeline.Kinds]union
	sum     uint64 // of all intervals
	time    uint64
	times   [timeline.Kinds]uint64
	twice   union
	overlap uint64
	gaps    histogram.Histogram
	gapTime uint64
	gapAt   int // window up to which gaps were counted
}

func newMeter(spans timeline.Spans) *meter { return &meter{clip: clipper{spans: spans}} }

func (m *meter) add(act *timeline.Activity) {
	from, to := m.clip.clip(act.Start, act.End)
	if from == to {
		return
	}
	m.sum += to - from
	m.gap(from)
	if x, y := m.twice.add(from, min(to, m.all.end)); x < y {
		m.overlap += y - x
	}
	x, y := m.all.add(from, to)
	m.time += y - x
	x, y = m.kinds[act.Kind].add(from, to)
	m.times[act.Kind] += y - x
}

// gap notes what lies between the last activity and one that begins at from, and the
// windows that were left meanwhile.
func (m *meter) gap(from uint64) {
	for ; m.gapAt < m.clip.at; m.gapAt++ {
		m.addGap(max(m.clip.spans[m.gapAt].From, m.all.end), m.clip.spans[m.gapAt].To)
	}
	m.addGap(max(m.clip.spans[m.gapAt].From, m.all.end), from)
}

func (m *meter) addGap(from, to uint64) {
	if from < to {
		m.gaps.Add(to - from)
		m.gapTime += to - from
	}
}

// finish counts the time after the last activity.
func (m *meter) finish() {
	for _, span := range m.clip.spans[m.gapAt:] {
		m.addGap(max(span.From, m.all.end), span.To)
	}
}

func (m *meter) busy(c Coverage) Busy {
	b := Busy{
		Coverage: c, Time: m.time, Share: share(m.time, c.Time), MaxShare: min(1, share(m.time+c.Unsure, c.Time)),
		Kernels: m.times[timeline.Kernel], Copies: m.times[timeline.Copy], Sets: m.times[timeline.Set],
	}
	if c.Dropped > 0 {
		b.MaxShare = 1
	}
	return b
}

// devices makes the parts about busy time, and shows each activity to w: they are many, and looked at once.
func (a *analysis) devices(s *Summary, w *work) {
	s.Devices, s.Streams = []Device{}, []stream{}
	var total Busy
	streams := make([]streamMeter, len(a.t.Streams))
	for d := range a.t.Devices {
		row := a.device(d, streams, w)
		s.Devices = append(s.Devices, row)
		total = sum(total, row.Busy)
	}
	if len(a.t.Devices) == 0 {
		total.Coverage = s.Activity
		total = newMeter(nil).busy(total.Coverage)
	}
	s.Busy = total
	a.streams(streams, s)
	s.Streams = top(s.Streams, maxStreams, func(x, y *stream) int {
		return cmp.Or(
			cmp.Compare(y.Busy, x.Busy),
			cmp.Compare(x.PID, y.PID),
			cmp.Compare(x.Context, y.Context),
			cmp.Compare(x.ID, y.ID),
		)
	})
}

// sum puts the busy times of devices together: the share is that of their time together.
func sum(x, y Busy) Busy {
	c := Coverage{
		Time: x.Coverage.Time + y.Coverage.Time, Windows: max(x.Coverage.Windows, y.Coverage.Windows),
		Share:  max(x.Coverage.Share, y.Coverage.Share),
		Unsure: x.Coverage.Unsure + y.Coverage.Unsure, Dropped: x.Coverage.Dropped + y.Coverage.Dropped,
	}
	out := Busy{
		Coverage: c, Time: x.Time + y.Time, Kernels: x.Kernels + y.Kernels, Copies: x.Copies + y.Copies,
		Sets: x.Sets + y.Sets,
	}
	out.Share, out.MaxShare = share(out.Time, c.Time), min(1, share(out.Time+c.Unsure, c.Time))
	if c.Dropped > 0 {
		out.MaxShare = 1
	}
	return out
}

// atOnce is how many activities are looked at before others look at them: with their events they take 400 kB, which the
// second level of a CPU's cache holds.
const atOnce = 1 << 12

// device measures one device, and its streams.
func (a *analysis) device(d int, streams []streamMeter, w *work) Device {
	t, dev := a.t, &a.t.Devices[d]
	row := Device{
		PID:   t.Processes[dev.Process].PID,
		ID:    dev.ID,
		Users: len(dev.Users),
		Count: uint64(dev.Last - dev.First),
		Parts: []part{},
	}
	if dev.Info != nil {
		row.Name, row.UUID = dev.Info.Name, dev.Info.UUID
	}
	spans := together(t, dev.Users)
	whole, ever, anyTime := newMeter(spans), union{}, uint64(0)
	parts := a.parts(dev)
	for i := dev.First; i < dev.Last; i++ {
		act := &t.Activities[i]
		whole.add(act)
		from, to := ever.add(act.Start, act.End)
		anyTime += to - from
		streams[act.Stream].add(act)
		if parts != nil {
			parts[t.Streams[act.Stream].Process].add(act)
		}
		w.add(i, act)
		if seen := i + 1 - dev.First; seen%atOnce == 0 || i+1 == dev.Last {
			a.also(d, i-(seen-1)%atOnce, i+1)
		}
	}
	w.copies.finish()
	whole.finish()
	row.Busy = whole.busy(cover(t, spans, dev.Users))
	a.busy += anyTime
	a.anyTime = append(a.anyTime, anyTime)
	row.Concurrency, row.Overlap = share(whole.sum, whole.time), share(whole.overlap, whole.time)
	row.Gaps = gaps{
		Count:   whole.gaps.Count,
		Time:    whole.gapTime,
		Longest: whole.gaps.Max,
		P50:     whole.gaps.Percentile(50),
	}
	for _, p := range dev.Users {
		if m := parts[p]; m != nil {
			row.Parts = append(row.Parts,
				part{PID: t.Processes[p].PID, Busy: m.busy(cover(t, t.Seen[p].Activity, []int32{p}))})
		}
	}
	return row
}

// parts returns what measures each of several processes that use a device, nil for one.
func (a *analysis) parts(dev *timeline.Device) map[int32]*meter {
	if len(dev.Users) < 2 {
		return nil
	}
	parts := map[int32]*meter{}
	for _, p := range dev.Users {
		parts[p] = newMeter(a.t.Seen[p].Activity)
	}
	return parts
}

// streamMeter measures one stream.
type streamMeter struct {
	all   union
	busy  uint64
	kinds [timeline.Kinds]uint64
}

func (m *streamMeter) add(act *timeline.Activity) {
	from, to := m.all.add(act.Start, act.End)
	m.busy += to - from
	m.kinds[act.Kind]++
}

// streams returns the rows of streams.
func (a *analysis) streams(meters []streamMeter, s *Summary) {
	for i := range a.t.Streams {
		st, m := &a.t.Streams[i], &meters[i]
		dev := &s.Devices[st.Device]
		dev.Streams++
		s.Streams = append(s.Streams, stream{
			PID: a.t.Processes[st.Process].PID, Device: dev.ID, Context: st.Context, ID: st.ID,
			Kernels: m.kinds[timeline.Kernel], Copies: m.kinds[timeline.Copy], Sets: m.kinds[timeline.Set],
			Busy:  m.busy,
			Share: share(m.busy, a.t.Seen[st.Process].Activity.Total()), OfBusy: share(m.busy, a.anyTime[st.Device]),
		})
	}
}
