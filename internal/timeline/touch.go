package timeline

// Ahead is for how many activities Touch is asked at once: what it reads takes 16 kB, which the first level of a CPU's cache holds.
const Ahead = 128

// Touch reads the calls of as many activities from first on as Ahead says, but none from last on, so that they are in the cache when somebody looks
// at one after the other; events: what the activities were made of too. Of many threads all of it lies far apart: to fetch each by itself takes longer
// than what is done with it. Of few threads the CPU sees what comes next, and nothing is read. Who keeps the sum keeps the compiler from leaving it out.
func (t *Timeline) Touch(first, last int32, events bool) (sum uint64) {
	if len(t.Threads) <= fewThreads {
		return 0
	}
	list := t.Activities[first:min(last, first+Ahead)]
	for i := range list {
		if op := list[i].Op; op != None {
			sum += t.Ops[op].Start
		}
		if events {
			sum += t.Rec.Events[list[i].Event].TS
		}
	}
	return sum
}

// fewThreads is how many threads a CPU can follow: for one it took a tenth longer to summarize the GPU's side with Touch, for 64 it takes a third
// less (BenchmarkWhole of package diagnose).
const fewThreads = 4
