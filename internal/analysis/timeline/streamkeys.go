package timeline

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// streamSlotKey is a stream as an event names it, for as long as its pid means one process.
type streamSlotKey struct {
	pid, tid uint32
	fn       uint16 // device and context
	from     uint64 // ns
}

// streamSlot is what a scan knows of one stream.
type streamSlot struct {
	streamSlotKey
	to       uint64 // ns, inclusive, as from
	process  int32  // None where the recording does not list it
	activity Spans  // when its activities were seen
	at       int    // the span of activity that was used last
	count    int32  // activities
	stream   int32
	device   int32
	list     []int32 // the queue of its stream; nil: none is listed
	next     int32   // where in list its next activity goes
}

// madeKey tells streams apart.
type madeKey struct {
	process int32
	fn      uint16
	id      uint32
}

type deviceKey struct {
	process int32
	id      uint8
}

// stream returns the stream of an activity. Neighbouring events are of few streams, so a
// small table in front of the map answers nearly all of them.
func (s *scan) stream(e *event.Event) *streamSlot {
	near := &s.nearStreams[(e.TID^e.TID>>8^uint32(e.Func)*7^e.PID*13)&255]
	if k := *near; k != nil && k.tid == e.TID && k.fn == e.Func && k.pid == e.PID && e.TS >= k.from && e.TS <= k.to {
		return k
	}
	process, from, to := s.b.processes.find(e.PID, e.TS)
	key := streamSlotKey{e.PID, e.TID, e.Func, from}
	k := s.byStream[key]
	if k == nil {
		k = &streamSlot{streamSlotKey: key, to: to, process: process}
		if process != None && int(process) < len(s.b.t.Seen) {
			k.activity = s.b.t.Seen[process].Activity
		}
		s.byStream[key] = k
		s.streams = append(s.streams, k)
	}
	*near = k
	return k
}

// clip returns the part of [from, to] that lies in the window in which it was seen.
func (k *streamSlot) clip(from, to uint64) (start, end uint64, ok bool) {
	if k.at >= len(k.activity) || from < k.activity[k.at].From || from >= k.activity[k.at].To {
		k.at = k.activity.At(from)
	}
	if k.at >= len(k.activity) {
		return 0, 0, false
	}
	w := k.activity[k.at]
	start, end = max(from, w.From), min(to, w.To)
	return start, end, start <= end
}

// makeStreams makes the streams and devices of the activities that the scans found, and gives each scan the
// places of its activities.
func (b *builder) makeStreams() {
	t, made, devices := b.t, map[madeKey]int32{}, newDevices(b)
	for _, s := range b.scans {
		for _, k := range s.streams {
			if k.count == 0 {
				continue
			}
			m := madeKey{k.process, k.fn, k.tid}
			at, ok := made[m]
			if !ok {
				at = int32(len(t.Streams))
				t.Streams = append(t.Streams, Stream{
					Process: k.process, Device: devices.of(k.process, k.pid, uint8(k.fn)), Context: uint8(k.fn >> 8),
					ID: k.tid,
				})
				made[m] = at
			}
			k.stream = at
		}
	}
	movedDevices := permute(t.Devices, func(x, y *Device) int {
		return cmp.Or(cmp.Compare(x.Process, y.Process), cmp.Compare(x.ID, y.ID))
	})
	for i := range t.Streams {
		t.Streams[i].Device = movedDevices[t.Streams[i].Device]
	}
	movedStreams := permute(t.Streams, func(x, y *Stream) int {
		return cmp.Or(
			cmp.Compare(x.Process, y.Process),
			cmp.Compare(x.Context, y.Context),
			cmp.Compare(x.ID, y.ID),
			cmp.Compare(x.Device, y.Device),
		)
	})
	for _, s := range b.scans {
		for _, k := range s.streams {
			if k.count > 0 {
				k.stream = movedStreams[k.stream]
				k.device = t.Streams[k.stream].Device
			}
		}
	}
	b.placeActivities()
	b.users()
}

// placeActivities gives each scan the places of its activities, by device and in the queues of the streams.
func (b *builder) placeActivities() {
	t := b.t
	devices, counts := make([]int32, len(t.Devices)+1), make([]int32, len(t.Streams))
	b.eachStream(func(_ *scan, k *streamSlot) {
		devices[k.device+1] += k.count
		counts[k.stream] += k.count
	})
	for i := range t.Devices {
		devices[i+1] += devices[i]
		t.Devices[i].First, t.Devices[i].Last = devices[i], devices[i+1]
	}
	t.Activities = make([]Activity, devices[len(t.Devices)])
	b.makeQueues(counts)
	taken := make([]int32, len(t.Streams)) // of each queue, by the scans before
	for _, s := range b.scans {
		s.next = slices.Clone(devices)
		for _, k := range s.streams {
			if k.count > 0 {
				k.list, k.next = b.queues[k.stream].list, taken[k.stream]
				taken[k.stream] += k.count
				devices[k.device] += k.count
			}
		}
	}
}

// eachStream visits the streams of all scans that have activities.
func (b *builder) eachStream(visit func(s *scan, k *streamSlot)) {
	for _, s := range b.scans {
		for _, k := range s.streams {
			if k.count > 0 {
				visit(s, k)
			}
		}
	}
}

// devices makes the devices.
type devices struct {
	b     *builder
	made  map[deviceKey]int32
	uuids map[string]int32
}

func newDevices(b *builder) *devices {
	return &devices{b: b, made: map[deviceKey]int32{}, uuids: map[string]int32{}}
}

// of returns the index of a GPU. One that two processes use is one device, if its UUID tells.
func (x *devices) of(process int32, pid uint32, id uint8) int32 {
	k := deviceKey{process, id}
	if d, ok := x.made[k]; ok {
		return d
	}
	var info *recording.Device
	for i := range x.b.meta().Devices {
		if d := &x.b.meta().Devices[i]; d.PID == pid && d.ID == uint32(id) {
			info = d
		}
	}
	if info != nil && info.UUID != "" {
		if d, ok := x.uuids[info.UUID]; ok {
			x.made[k] = d
			return d
		}
		x.uuids[info.UUID] = int32(len(x.b.t.Devices))
	}
	d := int32(len(x.b.t.Devices))
	x.made[k] = d
	x.b.t.Devices = append(x.b.t.Devices, Device{Process: process, ID: id, Info: info})
	return d
}

func (b *builder) users() {
	for i := range b.t.Streams {
		s := &b.t.Streams[i]
		d := &b.t.Devices[s.Device]
		if !slices.Contains(d.Users, s.Process) {
			d.Users = append(d.Users, s.Process)
		}
	}
}

// permute sorts list and returns the new place of each of its elements.
func permute[T any](list []T, compare func(x, y *T) int) []int32 {
	order := make([]int32, len(list))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(x, y int32) int { return compare(&list[x], &list[y]) })
	sorted, place := make([]T, len(list)), make([]int32, len(list))
	for i, old := range order {
		sorted[i], place[old] = list[old], int32(i)
	}
	copy(list, sorted)
	return place
}
