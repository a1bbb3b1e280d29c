package requests

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
)

// surely is the part of a step's work on GPUs after which it has surely begun: what is left of the step before takes
// less.
const surely = 64

// count finds how many tokens were computed in each step, where that is certain: one for each request that goes on, and
// the prompt of one that has its first token. It is not where a prompt may have been computed in several steps, where
// requests were preempted, and where several tokens are made at a time, some of which may come to nothing.
func (run *stepRun) count(requests []recording.EngineRequest, gpu *work) {
	if run.cuts == nil {
		return
	}
	n := len(run.to)
	begun := make([]uint64, n) // by when each had begun on the GPU, rising: what is scheduled later is in none before
	for i := range run.to {
		if begun[i] = run.to[i]; i > 0 && run.cuts[i] > 0 && run.cuts[i-1] > 0 && !run.missed[i] {
			from := run.cuts[i-1]
			begun[i] = min(run.to[i], gpu.after(from, max(1, (gpu.until(run.cuts[i])-gpu.until(from))/surely)))
		}
		if i > 0 {
			begun[i] = max(begun[i], begun[i-1])
		}
	}
	prompts, firsts, hidden := make([]uint64, n), make([]uint32, n), make([]int, n+1)
	for i := range requests {
		q := &requests[i]
		begin := cmp.Or(q.Scheduled, q.Asked)
		from, _ := slices.BinarySearch(begun, begin)
		to, ok := slices.BinarySearch(run.to, q.First)
		switch last, _ := slices.BinarySearch(run.to, q.Last); {
		case q.Preemptions > 0 || !ok && q.Steps == 0:
			to = n
		case !ok: // it began before the recording
			to = min(n, max(0, last+2-int(q.Steps)))
		case from == to && q.Computed > 0 && begin > 0:
			prompts[to] += uint64(q.Computed)
			firsts[to]++
		default:
			to++
		}
		if from < to { // it may be in these with a part of its prompt
			hidden[from]++
			hidden[to]--
		}
	}
	run.computed = make([]uint64, n)
	doubts := 0
	for i := range run.to {
		if doubts += hidden[i]; doubts == 0 && firsts[i] == run.firsts[i] && run.plain[i] {
			run.computed[i] = prompts[i] + uint64(run.batch[i]-run.firsts[i])
		}
	}
}

// tokens returns how many tokens were computed in a step for a request, and for all; 0: that is not known.
func (run *stepRun) tokens(i int, first bool, q *recording.EngineRequest) (own, all uint64) {
	if run.computed == nil || run.computed[i] == 0 {
		return 0, 0
	}
	if first {
		return uint64(q.Computed), run.computed[i]
	}
	return 1, run.computed[i]
}
