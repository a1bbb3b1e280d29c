package recording

// Request is one HTTP request that a process of the target served. Times are CLOCK_MONOTONIC in ns, of the server's
// reads and writes; 0: it did not come to this, or is not known. Nothing of what was asked or answered is kept.
type Request struct {
	Number       uint64 `json:"number"`                   // Args[0] of a RequestChunk
	PID          uint32 `json:"pid"`                      // of the process that read it
	Port         uint32 `json:"port,omitempty"`           // local; 0: a unix socket
	Received     uint64 `json:"received_ns"`              // the first bytes of the request were read
	Asked        uint64 `json:"asked_ns,omitempty"`       // the last ones
	FirstByte    uint64 `json:"first_byte_ns,omitempty"`  // the first bytes of the answer were written: its header
	FirstToken   uint64 `json:"first_token_ns,omitempty"` // the first part with content; streamed answers only
	LastToken    uint64 `json:"last_token_ns,omitempty"`  // the last such part
	End          uint64 `json:"end_ns,omitempty"`         // the last bytes, or the end of the connection; 0: it goes on
	Method       string `json:"method"`
	Route        string `json:"route"` // path without query; segments that may be somebody's are *
	Model        string `json:"model,omitempty"`
	ID           string `json:"id,omitempty"`          // that the server gave to the answer
	Trace        string `json:"traceparent,omitempty"` // of W3C Trace Context, as the client sent it
	Status       uint32 `json:"status,omitempty"`      // 0: no answer
	Outcome      string `json:"outcome"`               // open, complete, aborted, unbounded
	Streamed     bool   `json:"streamed,omitempty"`
	Unreadable   bool   `json:"unreadable,omitempty"` // compressed, or bytes of a stream are missing: numbers are lower bounds
	InputTokens  uint32 `json:"input_tokens,omitempty"`
	OutputTokens uint32 `json:"output_tokens,omitempty"`
	CachedTokens uint32 `json:"cached_tokens,omitempty"` // of the input
	TokenSource  string `json:"token_source,omitempty"`  // of OutputTokens: usage, timings, chunks (a lower bound); "": not known
	Parts        uint32 `json:"parts,omitempty"`         // of a streamed answer, with content
	Writes       uint32 `json:"writes,omitempty"`        // transfers with such parts: each has a RequestChunk
}
