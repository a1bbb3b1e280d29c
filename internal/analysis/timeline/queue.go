package timeline

import "sort"

// queue is the activities of one stream in the order of their beginnings, as indices into Timeline.Activities. Where a
// stream has its device for itself they follow each other there, and no list is made: of a recording of launches that
// would be a twenty-fifth of all memory.
type queue struct {
	first int32
	n     int
	list  []int32 // nil: they are [first, first+n)
}

// at returns the activity at a place.
func (q *queue) at(i int) int32 {
	if q.list == nil {
		return q.first + int32(i)
	}
	return q.list[i]
}

// search returns the place of the first activity of which before is false.
func (q *queue) search(before func(activity int32) bool) int {
	return sort.Search(q.n, func(i int) bool { return !before(q.at(i)) })
}

// of returns the activities of a stream.
func (b *builder) of(stream int32) *queue { return &b.queues[stream] }

// makeQueues makes the queues, with room for so many activities of each stream.
func (b *builder) makeQueues(counts []int32) {
	t := b.t
	streams, listed := make([]int, len(t.Devices)), int32(0)
	for i := range t.Streams {
		streams[t.Streams[i].Device]++
	}
	for i, n := range counts {
		if streams[t.Streams[i].Device] > 1 {
			listed += n
		}
	}
	room := make([]int32, listed)
	b.queues = make([]queue, len(t.Streams))
	for i, n := range counts {
		q, d := &b.queues[i], t.Streams[i].Device
		if q.n = int(n); streams[d] == 1 {
			q.first = t.Devices[d].First
			continue
		}
		q.list, room = room[:n:n], room[n:]
	}
}
