package daemon

import (
	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/loss"
)

// nameStacks fills the tables of stacks with those of the recording's samples, and counts the samples
// whose stack has made room for others since.
func (r *recording) nameStacks(s Stacker) {
	if s == nil {
		return
	}
	samples := map[uint64]uint64{} // of each stack
	var numbers []uint64
	for batch := range r.snapshot.Events(r.want) {
		for i := range batch {
			n := batch[i].Args[0]
			if batch[i].Kind != event.Sample || n == 0 {
				continue
			}
			if samples[n]++; samples[n] == 1 {
				numbers = append(numbers, n)
			}
		}
	}
	if len(numbers) == 0 {
		return
	}
	r.meta.Frames, r.meta.Stacks, r.stackAt = s.Stacks(numbers)
	evicted := loss.Loss{Reason: loss.StackEvicted}
	for _, n := range numbers {
		if _, ok := r.stackAt[n]; !ok {
			evicted.Count += samples[n]
		}
	}
	if evicted.Count > 0 {
		r.meta.Losses = ordered(append(r.meta.Losses, evicted))
	}
}
