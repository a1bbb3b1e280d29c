package daemon

import (
	"iter"

	"github.com/inferscope/inferscope/internal/event"
)

// nameStacks fills the tables of stacks with those of the recording's samples.
func (r *recording) nameStacks(s Stacker) {
	if s == nil {
		return
	}
	seen := map[uint64]bool{}
	var numbers []uint64
	for batch := range r.snapshot.Events(r.want) {
		for i := range batch {
			if n := batch[i].Args[0]; batch[i].Kind == event.Sample && n != 0 && !seen[n] {
				seen[n] = true
				numbers = append(numbers, n)
			}
		}
	}
	if len(numbers) > 0 {
		r.meta.Frames, r.meta.Stacks, r.stackAt = s.Stacks(numbers)
	}
}

// renumbered yields copies of the events in which samples carry the recording's own
// numbers of stacks: the recorder's memory is shared with other recordings.
func renumbered(batches iter.Seq[[]event.Event], at map[uint64]uint64) iter.Seq[[]event.Event] {
	return func(yield func([]event.Event) bool) {
		var room []event.Event
		for batch := range batches {
			room = append(room[:0], batch...)
			for i := range room {
				if room[i].Kind == event.Sample {
					room[i].Args[0] = at[room[i].Args[0]]
				}
			}
			if !yield(room) {
				return
			}
		}
	}
}
