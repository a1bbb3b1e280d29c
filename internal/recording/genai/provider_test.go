package genai_test

import (
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/genai"
)

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
