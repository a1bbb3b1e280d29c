package daemon

import "github.com/inferscope/inferscope/internal/recording/loss"

// nameStacks fills the tables of stacks with those of the recording's samples, and counts the samples whose stack was
// evicted.
func (r *held) nameStacks(s stacker) {
	if s == nil {
		return
	}
	samples, numbers := r.references().samples, r.references().stacks
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
