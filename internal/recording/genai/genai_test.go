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

func TestProviderAndService(t *testing.T) {
	for cmdline, want := range map[string][2]string{
		"/opt/venv/bin/python3 -m vllm.entrypoints.openai.api_server --model m": {"vllm", "vllm"},
		"/usr/bin/python /opt/venv/bin/vllm serve /models/m":                    {"vllm", "vllm"},
		"VLLM::EngineCore_DP0":                                    {"vllm", "vllm"},
		"python3 -m sglang.launch_server --model-path m":          {"sglang", "sglang"},
		"./llama-server -m model.gguf":                            {"llama_cpp", "llama_cpp"},
		"ollama serve":                                            {"ollama", "ollama"},
		"/opt/tritonserver/bin/tritonserver --model-repository=x": {"triton", "triton"},
		"python3 /usr/bin/transformers serve":                     {"transformers", "transformers"},
		"python3 serve.py --served-model-name vllm":               {"", "serve"},
		"python3 vllm.py":                                         {"", "vllm"},
		"python3 /srv/app/main.py --engine vllm ollama":           {"", "main"},
		"uvicorn main:app":                                        {"", "comm"},
		"":                                                        {"", "comm"},
	} {
		p, none := recording.Process{Comm: "comm", Cmdline: cmdline}, recording.Process{}
		if got := [2]string{genai.Provider(&p, &none, false), genai.Service(&p)}; got != want {
			t.Errorf("%q is %q, want %q", cmdline, got, want)
		}
	}
	worker := recording.Process{Comm: "python3", Cmdline: "python3 -c from multiprocessing.spawn import spawn_main"}
	root := recording.Process{Cmdline: "python3 -m sglang.launch_server"}
	if got := genai.Provider(&worker, &root, true); got != "sglang" {
		t.Errorf("a worker of SGLang is of %q", got)
	}
	if got := genai.Provider(&worker, &worker, true); got != "vllm" {
		t.Errorf("a server of which an engine's messages were read is of %q", got)
	}
}
