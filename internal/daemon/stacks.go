package daemon

import "github.com/inferscope/inferscope/internal/event"

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
