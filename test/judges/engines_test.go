package judges

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/request/engine"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// told is what was read of an engine's messages.
type told struct {
	steps    []engine.Step
	requests []engine.Request
	aborts   []string
}

func (s *told) Step(x *engine.Step)       { s.steps = append(s.steps, *x) }
func (s *told) Request(r *engine.Request) { s.requests = append(s.requests, *r) }
func (s *told) Abort(_ uint64, id string) { s.aborts = append(s.aborts, id) }
func (s *told) Text(uint64, string)       {}

// TestNewestEngines: what the classes and encoders of the newest vLLM and SGLang make is read. Their wheels lie in the
// folder that INFERSCOPE_ENGINES names (scripts/test-judges.sh).
func TestNewestEngines(t *testing.T) {
	python, folder := os.Getenv(pythonEnv), os.Getenv("INFERSCOPE_ENGINES")
	if python == "" || folder == "" {
		t.Skipf("%s or INFERSCOPE_ENGINES is not set (scripts/test-judges.sh sets both)", pythonEnv)
	}
	for _, e := range []struct{ wheel, script, form string }{
		{"vllm-*.whl", "vllm_messages.py", ""},
		{"sglang-*.whl", "sglang_messages.py", ""},
		{"sglang-*.whl", "sglang_messages.py", "msgpack"},
	} {
		wheels, err := filepath.Glob(filepath.Join(folder, e.wheel))
		if err != nil || len(wheels) == 0 {
			t.Errorf("no %s in %s", e.wheel, folder)
		}
		for _, wheel := range wheels {
			t.Run(filepath.Base(wheel)+" "+e.form, func(t *testing.T) { checkEngine(t, python, e.script, wheel, e.form) })
		}
	}
}

func checkEngine(t *testing.T, python, script, wheel, form string) {
	file := filepath.Join(t.TempDir(), "messages")
	args := []string{filepath.Join("../../testdata/engineserver", script), wheel, file}
	if form != "" {
		args = append(args, form)
	}
	must.Run(t, exec.Command(python, args...))
	b, err := os.ReadFile(file)
	must.NoError(t, err)
	var s told
	c := engine.New(&s)
	c.Sent(7, b, len(b))
	if c.Misshapen() || c.Strange() || c.Cut() > 0 {
		t.Errorf("not all has a known shape: %d messages are", c.Known())
	}
	if len(s.requests) != 1 || s.requests[0].ID != "r-1" || len(s.aborts) != 1 || s.aborts[0] != "r-3" {
		t.Errorf("requests %+v, aborts %q", s.requests, s.aborts)
	}
	if len(s.steps) != 1 || len(s.steps[0].Outputs) != 3 {
		t.Fatalf("steps %+v", s.steps)
	}
	sums := script != "vllm_messages.py"
	for i, want := range []engine.Output{
		{ID: "r-1", Tokens: 1, Total: 1},
		{ID: "r-2", Tokens: 2, Total: 5, Finish: "length"},
		{ID: "r-3", Tokens: 0, Total: 2, Finish: "abort"},
	} {
		got := s.steps[0].Outputs[i]
		if got.ID != want.ID || got.Finish != want.Finish || got.Sums != sums || sums && got.Total != want.Total ||
			!sums && got.Tokens != want.Tokens {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}
