package html

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// drawn is an item as the page draws it: one of the recording, or several short ones that are drawn as one.
type drawn struct {
	item
	count uint32 // 0: it is as it was recorded
	fill  uint8  // of several: the share of its length that they take, of 255
}

// detail describes how fine a timeline is: what is shorter than a quarter of bin (ns) is put together with what else
// begins in the same bin, but for the focus, where all is as it was recorded. Bin 0 is everything as it was recorded.
type detail struct {
	bin   uint64
	focus timeline.Spans
}

// context is how much is shown as it was recorded before and after what a finding points at, ns: some steps of a
// decode.
const context = 5_000_000

// maxFocus bounds one place that is shown as it was recorded, ns: evidence can be as long as the recording.
const maxFocus = 100_000_000

// maxPlaces bounds the pieces of evidence of a finding that are in focus.
const maxPlaces = 6

// focus are the times that findings point at, and the beginning of what was seen.
func (s *scene) focus() timeline.Spans {
	var list []timeline.Span
	add := func(from, to uint64) {
		list = append(list, timeline.Span{From: from - min(from, context), To: min(to, from+maxFocus) + context})
	}
	for i := range s.in.Findings {
		n := 0
		for _, e := range s.in.Findings[i].Evidence {
			if e.To > e.From && n < maxPlaces {
				add(e.From, e.To)
				n++
			}
		}
	}
	first := s.in.Timeline.From
	if len(s.spans) > 0 && len(s.spans[0]) > 0 {
		first = s.spans[0][0].From
	}
	add(first, first+2*context)
	return timeline.Join(list)
}

// merger combines the short items of one track.
type merger struct {
	d    detail
	from uint64            // ns: where the first bin begins
	next int               // index into d.focus of the first that has not ended
	time map[uint32]uint64 // ns by label, of the items that wait
	out  []drawn
	wait []item // they begin in the same bin
}

// merge returns the items of a track as they are drawn, and takes O(n).
func merge(items []item, d detail, from uint64) []drawn {
	m := &merger{d: d, from: from, time: map[uint32]uint64{}}
	for i := range items {
		m.take(&items[i])
	}
	m.flush()
	slices.SortStableFunc(m.out, func(x, y drawn) int { return cmp.Compare(x.start, y.start) })
	return m.out
}

func (m *merger) take(it *item) {
	if m.d.bin == 0 || it.end-it.start >= m.d.bin/4 || m.focused(it) {
		m.flush() // nothing is put together across what is shown by itself
		m.out = append(m.out, drawn{item: *it})
		return
	}
	if len(m.wait) > 0 && (m.wait[0].start-m.from)/m.d.bin != (it.start-m.from)/m.d.bin {
		m.flush()
	}
	m.wait = append(m.wait, *it)
}

// focused reports whether an item lies in the focus. Items come by their start.
func (m *merger) focused(it *item) bool {
	for m.next < len(m.d.focus) && m.d.focus[m.next].To <= it.start {
		m.next++
	}
	return m.next < len(m.d.focus) && m.d.focus[m.next].From < it.end
}

// flush emits the pending items as one. The label is that of most of its time.
func (m *merger) flush() {
	if len(m.wait) == 1 {
		m.out = append(m.out, drawn{item: m.wait[0]})
	}
	if len(m.wait) > 1 {
		m.out = append(m.out, m.together())
	}
	m.wait = m.wait[:0]
}

func (m *merger) together() drawn {
	one := drawn{item: m.wait[0], count: uint32(len(m.wait))}
	one.ref, one.src = none, none
	clear(m.time)
	all, best := uint64(0), uint64(0)
	for i := range m.wait {
		it := &m.wait[i]
		one.end = max(one.end, it.end)
		all += it.end - it.start
		m.time[it.label] += it.end - it.start + 1
		if t := m.time[it.label]; t > best {
			best, one.label = t, it.label
		}
	}
	if long := one.end - one.start; long > 0 {
		one.fill = uint8(min(255, max(1, 255*all/long)))
	}
	return one
}

// finest returns the finest detail with which there are at most so many items, and the tracks as they are drawn then.
func (s *scene) finest(most int) (detail, [][]drawn) {
	// What is coarser than this shows in the overview on a screen of 16,384 pixels.
	length := s.in.Timeline.To - s.in.Timeline.From
	coarsest := max(1<<16, length/16384)
	total := 0
	for i := range s.tracks {
		total += len(s.tracks[i].items)
	}
	var d detail
	if total > most {
		d = detail{bin: 1000, focus: s.focus()}
	}
	for {
		out, n := make([][]drawn, len(s.tracks)), 0
		for i := range s.tracks {
			detailOf := d
			if s.tracks[i].head.Kind == errorTrack { // there are few, and each counts
				detailOf = detail{}
			}
			out[i] = merge(s.tracks[i].items, detailOf, s.in.Timeline.From)
			n += len(out[i])
		}
		switch {
		case n <= most || d.bin > length:
			return d, out
		case d.bin > coarsest && len(d.focus) > 0: // then the focus is what is too much
			d = detail{bin: max(1000, d.bin/64), focus: d.focus[:len(d.focus)/2]}
		}
		d.bin *= 2
	}
}
