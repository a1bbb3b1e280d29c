package recording

import "strings"

// Request is one HTTP request that a process of the target served. Times are CLOCK_MONOTONIC in ns, of the server's
// reads and writes; 0: it did not come to this, or is not known.
type Request struct {
	Number     uint64 `json:"number"`                   // Args[0] of a RequestChunk
	PID        uint32 `json:"pid"`                      // of the process that read it
	Port       uint32 `json:"port,omitempty"`           // local; 0: a unix socket
	Received   uint64 `json:"received_ns"`              // the first bytes of the request were read
	Asked      uint64 `json:"asked_ns,omitempty"`       // the last ones
	FirstByte  uint64 `json:"first_byte_ns,omitempty"`  // the first bytes of the answer were written: its header
	FirstToken uint64 `json:"first_token_ns,omitempty"` // the first part with content; streamed answers only
	LastToken  uint64 `json:"last_token_ns,omitempty"`  // the last such part
	End        uint64 `json:"end_ns,omitempty"`         // the last bytes, or the end of the connection; 0: it goes on
	Method     string `json:"method"`
	Route      string `json:"route"` // path without query; segments that may be somebody's are *
	Model      string `json:"model,omitempty"`
	ID         string `json:"id,omitempty"`          // that the server gave to the answer
	Trace      string `json:"traceparent,omitempty"` // of W3C Trace Context, as the client sent it
	Status     uint32 `json:"status,omitempty"`      // 0: no answer
	Outcome    string `json:"outcome"`               // open, complete, aborted, unbounded
	Streamed   bool   `json:"streamed,omitempty"`
	// compressed, or bytes of a stream are missing: numbers are lower bounds
	Unreadable   bool   `json:"unreadable,omitempty"`
	InputTokens  uint32 `json:"input_tokens,omitempty"`
	OutputTokens uint32 `json:"output_tokens,omitempty"`
	CachedTokens uint32 `json:"cached_tokens,omitempty"` // of the input
	TokenSource  string `json:"token_source,omitempty"`  // of OutputTokens: usage, timings, engine, chunks (a lower bound); "": not known
	Parts        uint32 `json:"parts,omitempty"`         // of a streamed answer, with content
	Writes       uint32 `json:"writes,omitempty"`        // transfers with such parts: each has a RequestChunk
	// how often the client had sent it before, after an error or a disconnect
	Retry uint32 `json:"retry,omitempty"`
	// The beginnings of what was asked and answered, redacted: only where the daemon was told to capture content.
	Prompt string `json:"prompt,omitempty"`
	Answer string `json:"answer,omitempty"`
}

// Step is a step of an inference engine, as the engine told its API server. Times are CLOCK_MONOTONIC in ns.
type Step struct {
	TS         uint64 `json:"ts_ns"`                 // it was sent
	Made       uint64 `json:"made_ns,omitempty"`     // the engine made the message; 0: not told
	PID        uint32 `json:"pid"`                   // of the engine
	Engine     uint32 `json:"engine"`                // its index among those of one server
	Requests   uint32 `json:"requests"`              // that have output
	Tokens     uint32 `json:"tokens"`                // of output
	Firsts     uint32 `json:"firsts"`                // requests whose first token is among them
	Finished   uint32 `json:"finished"`              // requests that ended
	Preempts   uint32 `json:"preempted"`             // preemptions of requests
	Stats      bool   `json:"stats,omitempty"`       // what follows was told
	Running    uint32 `json:"running,omitempty"`     // requests in the batch
	Waiting    uint32 `json:"waiting,omitempty"`     // requests in the queue
	KVPermille uint32 `json:"kv_permille,omitempty"` // of the KV cache in use
	Missed     bool   `json:"missed,omitempty"`      // messages before it were lost
}

// EngineRequest is a request as an inference engine sees it. Times are CLOCK_MONOTONIC in ns; 0: not seen.
type EngineRequest struct {
	ID           string `json:"id"`                     // that the API server gave it
	PID          uint32 `json:"pid"`                    // of the engine; 0: it has sent nothing yet
	Engine       uint32 `json:"engine"`                 // index of the engine
	Asked        uint64 `json:"asked_ns,omitempty"`     // the API server sent it to the engine
	Queued       uint64 `json:"queued_ns,omitempty"`    // the engine put it into its queue
	Scheduled    uint64 `json:"scheduled_ns,omitempty"` // the engine first gave it a place in the batch
	First        uint64 `json:"first_ns,omitempty"`     // the engine sent its first token
	Last         uint64 `json:"last_ns,omitempty"`      // the engine sent its last one
	Finish       string `json:"finish,omitempty"`       // stop, length, abort, error, repetition; "": it goes on
	InputTokens  uint32 `json:"input_tokens,omitempty"`
	CachedTokens uint32 `json:"cached_tokens,omitempty"`   // of the input, from the prefix cache
	Computed     uint32 `json:"computed_tokens,omitempty"` // of the input, in its first prefill; 0: not told
	OutputTokens uint32 `json:"output_tokens,omitempty"`
	Steps        uint32 `json:"steps,omitempty"` // with output for it
	Preemptions  uint32 `json:"preemptions,omitempty"`
	Detokenized  uint64 `json:"detokenized_ns,omitempty"` // a detokenizer process sent its last text
}

// TTFT returns the time from the read of the request to the first part of the answer with content, in ns; 0: not known.
func (r *Request) TTFT() uint64 {
	if r.FirstToken == 0 {
		return 0
	}
	return r.FirstToken - min(r.Received, r.FirstToken)
}

// TPOT returns the time per output token behind the first one, in ns; 0: not known, or there are fewer than two tokens.
func (r *Request) TPOT() uint64 {
	if r.FirstToken == 0 || r.OutputTokens < 2 || r.Outcome != "complete" {
		return 0
	}
	return (r.LastToken - min(r.FirstToken, r.LastToken)) / uint64(r.OutputTokens-1)
}

// ByID finds requests by the id that the client was told: the engine's own has a number of the choice and a random
// suffix behind it. One whose whole id is that has precedence: clients may choose ids that begin alike.
func ByID(all []EngineRequest) map[string]*EngineRequest {
	out := make(map[string]*EngineRequest, 2*len(all))
	for i := range all {
		if _, there := out[all[i].ID]; !there {
			out[all[i].ID] = &all[i]
		}
	}
	for i := range all {
		id := all[i].ID
		for range 3 {
			if _, there := out[id]; !there {
				out[id] = &all[i]
			}
			cut := strings.LastIndexByte(id, '-')
			if cut <= 0 || len(all[i].ID)-cut > 16 {
				break
			}
			id = id[:cut]
		}
	}
	return out
}
