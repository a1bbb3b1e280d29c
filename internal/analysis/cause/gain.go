package cause

// Remedy is one way to change what a cause is about: Less is to do it once or not at all (keep it, vectorize it, do it
// on the GPU), where there is another way as well (to do it beside the rest, for instance). Merge is to make one copy
// or one kernel of many small ones.
type Remedy struct {
	Cause ID
	Less  bool
	Merge bool
}

// Gain is how much faster the program would be with a change: predicted by a replay, not by how much time it took.
type Gain struct {
	Plan    string  `json:"plan"`    // as whatif takes it: "without host-sync"
	Speedup float64 `json:"speedup"` // throughput after, of what it was
	Low     float64 `json:"low"`
	High    float64 `json:"high"`
	Because string  `json:"because,omitempty"` // what most of a wide interval comes from, or why nothing changes
	Limit   string  `json:"limit,omitempty"`   // what bounds it, where that is what decides
	// how many times as many workers it takes, each with a CPU of its own; 0: it takes none, or more than were tried
	Workers int `json:"workers,omitempty"`
	// of workers: how many CPUs they take on average with the change, and took before
	CPUs    float64 `json:"cpus,omitempty"`
	CPUsNow float64 `json:"cpus_now,omitempty"`
	// of workers: how many CPUs of the host were free beside; nil: not known
	FreeCPUs *float64 `json:"free_cpus,omitempty"`
	// of Workers above 1: the speed-up with the workers that there are, which always have something to do
	Present float64 `json:"present,omitempty"`
	// of Python code that leaves its thread for a process of its own: the speed-up in a thread of the same interpreter,
	// whose lock it shares with the one that launches; 0: no less
	InThread float64 `json:"in_thread,omitempty"`
}

// widest is how many times its lower end the upper end of an interval is at most, for a number between them to be one
// to act on.
const widest = 3

// Vague reports whether an interval is so wide that its lower end alone says anything: all beyond it may be.
func (g *Gain) Vague() bool { return g.High > widest*g.Low }
