package api

// Facts are what a stretch of ten seconds of a target says, by the analysis that reports rest on. Times are ns.
type Facts struct {
	PID        uint32            `json:"pid"`
	Iterations uint64            `json:"iterations"`
	P50        uint64            `json:"p50_ns"`              // of iterations
	Durations  []uint64          `json:"durations,omitempty"` // of iterations that were seen
	Watched    uint64            `json:"watched_ns"`          // in which GPU activity was seen, summed over GPUs
	Busy       uint64            `json:"busy_ns"`             // of Watched: a GPU ran something
	Idle       map[string]uint64 `json:"idle_ns,omitempty"`   // of Watched, by cause
	Hangs      uint64            `json:"hangs"`               // collectives that a rank had not come to at the end
	Calls      uint64            `json:"calls"`               // CUDA calls whose result is known
	Errors     uint64            `json:"errors"`              // of Calls
}
