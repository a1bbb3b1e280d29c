package recording

// RAS is what NCCL's RAS subsystem said of the communicators in which a target has ranks, when the recording was made.
// The ranks say it of themselves to each other: also those of other hosts.
type RAS struct {
	At            uint64            `json:"at_ns"`             // CLOCK_MONOTONIC
	Version       string            `json:"version,omitempty"` // of NCCL
	Communicators []RASCommunicator `json:"communicators"`
}

// RASCommunicator is one communicator. NCCL before 2.28.7 tells only of ranks that differ from most.
type RASCommunicator struct {
	Hash  string    `json:"hash"`           // commHash, 16 digits
	Size  int       `json:"size,omitempty"` // ranks; 0: not told
	Ranks []RASRank `json:"ranks,omitempty"`
	// Missing are ranks that did not answer.
	Missing []RASRank `json:"missing,omitempty"`
	// Most is how many operations of a kind ranks launched that are not told of one by one.
	Most map[string]uint64 `json:"most,omitempty"`
}

// RASRank is one rank.
type RASRank struct {
	Rank   int               `json:"rank"`
	Host   string            `json:"host,omitempty"`        // its address
	PID    uint32            `json:"pid,omitempty"`         // as its own pid namespace counts
	GPU    int               `json:"gpu"`                   // as its process counts
	Counts map[string]uint64 `json:"counts,omitempty"`      // operations that it launched, by kind: AllReduce
	Error  int               `json:"async_error,omitempty"` // ncclResult_t of ncclCommGetAsyncError
	Dead   bool              `json:"dead,omitempty"`        // it has not answered for a minute
}
