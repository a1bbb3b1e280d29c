package engine

import (
	"os"
	"reflect"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestVLLM: what the classes and the encoder of a real version made is read (testdata/engineserver/vllm_messages.py).
func TestVLLM(t *testing.T) {
	b, err := os.ReadFile("testdata/vllm-0.33.0.bin")
	must.NoError(t, err)
	var s seen
	c := New(&s)
	c.Sent(7, b, len(b))
	if c.Known() != 3 || c.Strange() || c.Cut() > 0 || c.Misshapen() {
		t.Fatalf("%d messages are known, %d cut: %+v", c.Known(), c.Cut(), s)
	}
	if len(s.requests) != 1 || s.requests[0] != (Request{TS: 7, ID: "r-1", Prompt: 10}) ||
		len(s.aborts) != 1 || s.aborts[0] != "r-3" {
		t.Errorf("requests %+v, aborts %q", s.requests, s.aborts)
	}
	want := []Step{{
		TS: 7, Clock: 101e9, Engine: 1, Stats: true, Running: 3, Waiting: 7, Cache: 0.5,
		Outputs: []Output{
			{ID: "r-1", Tokens: 1, Queued: 100.25e9, Scheduled: 100.5e9},
			{ID: "r-2", Tokens: 2, Finish: "length", Preempted: 1},
			{ID: "r-3", Finish: "abort"},
		},
	}}
	if !reflect.DeepEqual(s.steps, want) {
		t.Errorf("%+v\nwant %+v", s.steps, want)
	}
}
