// Package genai describes recorded requests in the terms of OpenTelemetry's conventions for generative AI: semantic
// conventions 1.41, gen_ai.*, of which none is stable yet.
package genai

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/inferscope/inferscope/internal/recording"
)

// Names of histograms. The unit of those of a server is the second. The conventions have numbers of tokens for clients
// alone.
const (
	Duration     = "gen_ai.server.request.duration"
	TimeToFirst  = "gen_ai.server.time_to_first_token"
	TimePerToken = "gen_ai.server.time_per_output_token"
	Tokens       = "gen_ai.client.token.usage"
)

// Outcomes of recording.Request.
const (
	outcomeAborted  = "aborted"
	outcomeComplete = "complete"
)

// Bounds of the buckets that the conventions advise, in seconds and tokens.
var (
	DurationBounds = []float64{
		0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
	}
	TimeToFirstBounds = []float64{
		0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10,
	}
	TimePerTokenBounds = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5}
	TokensBounds       = []float64{
		1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864,
	}
)

// operations are the ends of routes, with the value of gen_ai.operation.name for each.
var operations = []struct{ suffix, name string }{
	{"/chat/completions", "chat"},
	{"/v1/messages", "chat"}, // Anthropic
	{"/v1/responses", "chat"},
	{"/api/chat", "chat"}, // Ollama
	{"/completions", "text_completion"},
	{"/completion", "text_completion"},      // llama.cpp
	{"/generate", "text_completion"},        // SGLang, TGI, Ollama, Triton
	{"/generate_stream", "text_completion"}, // TGI, Triton
	{"/embeddings", "embeddings"},
	{"/embedding", "embeddings"},
	{"/api/embed", "embeddings"}, // Ollama
	{"/embed", "embeddings"},
}

// Other stands for operations of routes that are not those of a known API, and for models beyond those that have labels
// of their own.
const Other = "other"

// Operation returns gen_ai.operation.name for a route.
func Operation(route string) string {
	for _, o := range operations {
		if strings.HasSuffix(route, o.suffix) {
			return o.name
		}
	}
	return Other
}

// otherError stands for what has no name, and for errors beyond those that have labels of their own.
const otherError = "_OTHER"

// ErrorType returns error.type: the status, if it is that of an error, or "aborted" where the connection ended before
// the answer did; "": neither, or the end was not seen.
func ErrorType(r *recording.Request) string {
	switch {
	case r.Status >= 400 && http.StatusText(int(r.Status)) == "":
		return otherError
	case r.Status >= 400:
		return strconv.FormatUint(uint64(r.Status), 10)
	case r.Outcome == outcomeAborted:
		return outcomeAborted
	}
	return ""
}

// Succeeded reports whether a request was answered to its end, without an error.
func Succeeded(r *recording.Request) bool {
	return r.Outcome == outcomeComplete && r.Status > 0 && r.Status < 400
}

// Ended reports whether the end of a request was seen, so that it has a duration.
func Ended(r *recording.Request) bool {
	return (r.Outcome == outcomeComplete || r.Outcome == outcomeAborted) && r.End >= r.Received
}

// Bounds of what one target's requests are told apart by: clients choose names of models, and servers statuses.
const (
	maxModels = 32
	maxErrors = 8
)

// Labels are what the requests of one target are told apart by in metrics. The zero value is ready.
type Labels struct {
	models map[[2]string]bool // by operation and model
	errors map[string]bool
}

// Model returns operation and model of a request, of which there are few. A name that a server refused is no model:
// clients may ask for anything.
func (l *Labels) Model(r *recording.Request) (operation, model string) {
	operation, model = Operation(r.Route), r.Model
	k := [2]string{operation, model}
	if l.models[k] || model == "" {
		return operation, model
	}
	if len(l.models) >= maxModels || !Succeeded(r) {
		return operation, Other
	}
	if l.models == nil {
		l.models = map[[2]string]bool{}
	}
	l.models[k] = true
	return operation, model
}

// Error returns ErrorType of a request, of which there are few.
func (l *Labels) Error(r *recording.Request) string {
	name := ErrorType(r)
	if l.errors[name] || name == "" {
		return name
	}
	if len(l.errors) >= maxErrors {
		return otherError
	}
	if l.errors == nil {
		l.errors = map[string]bool{}
	}
	l.errors[name] = true
	return name
}

// part is a part of a message, and message one, as the conventions' attributes with content have them.
type part struct {
	Type    string `json:"type"`
	Content string `json:"content"`
}

type message struct {
	Role  string `json:"role"`
	Parts []part `json:"parts"`
}

// Message returns gen_ai.input.messages or gen_ai.output.messages of a text; "": there is none.
func Message(role, text string) string {
	if text == "" {
		return ""
	}
	out, err := json.Marshal([]message{{Role: role, Parts: []part{{Type: "text", Content: text}}}})
	if err != nil {
		return "" // strings have no error
	}
	return string(out)
}
