package diagnosis

import "strings"

// habits are what servers do out of habit, written by somebody who had read much of the analysis, and run once before
// it was changed for any of them.
func habits() []scenario {
	const locked = "enter; kernels 10 gemm_us50; wait; native 1500; leave; native 300"
	return []scenario{
		{name: "a lock around each step", script: strings.Join([]string{locked, locked}, "\n"), want: "lock"},
		{name: "a log that is synced", script: step + "flog 1", python: true, want: "disk"},
		{name: "answers as JSON", script: step + "dumps 4000", python: true, want: "serialization"},
		{name: "a pool of one thread", script: step + "pool 4000 1", python: true, want: "worker"},
		{name: "looking for a batch with sleeps", script: step + "look 800 3000", python: true, want: "sleep"},
		{
			name:   "tensors from lists",
			script: step + "lists 120 24",
			python: true,
			want:   "python-work",
			copies: "sync-copy",
		},
	}
}

func habitsTwins() map[string]twin {
	const unlocked = "kernels 10 gemm_us50; wait; native 1500; native 300"
	return map[string]twin{
		"a lock around each step":         fix(strings.Join([]string{unlocked, unlocked}, "\n"), "without", "lock"),
		"a log that is synced":            fix(step+"flog 0", "faster", "disk=1000000"),
		"answers as JSON":                 fix(step+"dumps 1000", "faster", "serialization=4"),
		"a pool of one thread":            fix(step+"pool 4000 2", "faster", "compress=2"),
		"looking for a batch with sleeps": fix(step+"look 800 0", "without", "sleep"),
		"tensors from lists":              fix(step+"lists 30 24", "faster", "to_tensors=4"),
	}
}
