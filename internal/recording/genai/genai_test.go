package genai_test

import (
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/genai"
)

func TestOperation(t *testing.T) {
	for route, want := range map[string]string{
		"/v1/chat/completions":               "chat",
		"/openai/v1/chat/completions":        "chat",
		"/v1/messages":                       "chat",
		"/v1/responses":                      "chat",
		"/api/chat":                          "chat",
		"/v1/completions":                    "text_completion",
		"/completion":                        "text_completion",
		"/generate_stream":                   "text_completion",
		"/v2/models/llama/generate_stream":   "text_completion",
		"/api/generate":                      "text_completion",
		"/v1/embeddings":                     "embeddings",
		"/api/embed":                         "embeddings",
		"/v2/models/resnet/infer":            "other",
		"/v1/chat/completions/render":        "other",
		"/v1/batches/chat/completions/abort": "other",
		"":                                   "other",
	} {
		if got := genai.Operation(route); got != want {
			t.Errorf("%q is %q, want %q", route, got, want)
		}
	}
}

func TestErrorType(t *testing.T) {
	for _, c := range []struct {
		status          uint32
		outcome         string
		want            string
		succeeded, ends bool
	}{
		{200, "complete", "", true, true},
		{200, "aborted", "aborted", false, true},
		{200, "unbounded", "", false, false},
		{200, "open", "", false, false},
		{0, "aborted", "aborted", false, true},
		{404, "complete", "404", false, true},
		{503, "aborted", "503", false, true},
		{599, "complete", "_OTHER", false, true},
		{65535, "complete", "_OTHER", false, true},
	} {
		r := recording.Request{Received: 5, End: 9, Status: c.status, Outcome: c.outcome}
		if got := genai.ErrorType(&r); got != c.want || genai.Succeeded(&r) != c.succeeded ||
			genai.Ended(&r) != c.ends {
			t.Errorf("%d %s: %q, succeeded %v, ended %v",
				c.status, c.outcome, got, genai.Succeeded(&r), genai.Ended(&r))
		}
	}
}
