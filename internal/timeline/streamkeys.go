package timeline

import (
	"math"

	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/record"
)

// streamKey is a stream as an event names it.
type streamKey struct {
	pid, tid uint32
	fn       uint16 // device and context
}

// streamEntry is what a streamKey means in a stretch of time.
type streamEntry struct {
	key      streamKey
	from, to uint64 // ns, both inclusive: how long the pid means this process
	process  int32
	stream   int32
	activity Spans
	at       int // the span of activity that was used last
}

// streamCache finds the entry of a key. Neighbouring events are of few streams, so a
// small table in front of the map answers nearly all of them.
type streamCache struct {
	near [64]*streamEntry
	all  map[streamKey]*streamEntry
	made map[madeKey]int32 // streams by what tells them apart
}

type madeKey struct {
	process int32
	fn      uint16
	id      uint32
}

// key returns what the stream of an activity means.
func (b *gpuBuilder) key(e *event.Event) *streamEntry {
	k := streamKey{e.PID, e.TID, e.Func}
	slot := &b.keys.near[(k.tid^k.tid>>6^uint32(k.fn)*7^k.pid*13)&63]
	if s := *slot; s != nil && s.key == k && e.TS >= s.from && e.TS <= s.to {
		return s
	}
	s := b.keys.all[k]
	if s == nil || e.TS < s.from || e.TS > s.to {
		s = b.newEntry(k, e.TS)
	}
	*slot = s
	return s
}

func (b *gpuBuilder) newEntry(k streamKey, ts uint64) *streamEntry {
	if b.keys.all == nil {
		b.keys.all, b.keys.made = map[streamKey]*streamEntry{}, map[madeKey]int32{}
	}
	s := &streamEntry{key: k}
	s.process, s.from, s.to = b.a.process(k.pid, ts)
	s.activity = b.seen(s.process).Activity
	m := madeKey{s.process, k.fn, k.tid}
	stream, ok := b.keys.made[m]
	if !ok {
		stream = int32(len(b.t.Streams))
		b.t.Streams = append(b.t.Streams, Stream{
			Process: s.process, Device: b.device(s.process, k.pid, uint8(k.fn)), Context: uint8(k.fn >> 8), ID: k.tid,
			Info: b.streamInfo(k),
		})
		b.keys.made[m] = stream
	}
	s.stream = stream
	b.keys.all[k] = s
	return s
}

// streamInfo finds the recording's row of a stream. Contexts from 255 on look alike in events.
func (b *gpuBuilder) streamInfo(k streamKey) *record.Stream {
	list := b.meta().Streams
	for i := range list {
		s := &list[i]
		if s.PID == k.pid && s.ID == k.tid && min(s.Context, math.MaxUint8) == uint32(k.fn>>8) {
			return s
		}
	}
	return nil
}

// device returns the index of a GPU. One that two processes use is one device, if its UUID tells.
func (b *gpuBuilder) device(process int32, pid uint32, id uint8) int32 {
	k := deviceKey{process, id}
	if d, ok := b.devices[k]; ok {
		return d
	}
	var info *record.Device
	for i := range b.meta().Devices {
		if d := &b.meta().Devices[i]; d.PID == pid && d.ID == uint32(id) {
			info = d
		}
	}
	if info != nil && info.UUID != "" {
		if d, ok := b.uuids[info.UUID]; ok {
			b.devices[k] = d
			return d
		}
		b.uuids[info.UUID] = int32(len(b.t.Devices))
	}
	d := int32(len(b.t.Devices))
	b.devices[k] = d
	b.t.Devices = append(b.t.Devices, Device{Process: process, ID: id, Info: info})
	return d
}

// clip returns the part of [from, to] that lies in the window in which it was seen.
func (s *streamEntry) clip(from, to uint64) (start, end uint64, ok bool) {
	if s.at >= len(s.activity) || from < s.activity[s.at].From || from >= s.activity[s.at].To {
		s.at = s.activity.At(from)
	}
	if s.at >= len(s.activity) {
		return 0, 0, false
	}
	w := s.activity[s.at]
	start, end = max(from, w.From), min(to, w.To)
	return start, end, start <= end
}
