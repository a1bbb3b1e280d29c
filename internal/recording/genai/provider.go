package genai

import (
	"path"
	"strings"

	"github.com/inferscope/inferscope/internal/recording"
)

// providers are programs and Python modules, with the value of gen_ai.provider.name for each: the conventions leave it
// to self-hosted servers.
var providers = []struct{ program, name string }{
	{"vllm", "vllm"},
	{"VLLM", "vllm"}, // as its processes call themselves: VLLM::EngineCore
	{"sglang", "sglang"},
	{"llama-server", "llama_cpp"},
	{"ollama", "ollama"},
	{"tritonserver", "triton"},
	{"text-generation-launcher", "tgi"},
	{"text-generation-router", "tgi"},
	{"transformers", "transformers"},
}

// program returns what a process runs: its program, or the script or module that Python runs.
func program(cmdline string) string {
	words := strings.Fields(cmdline)
	if len(words) == 0 {
		return ""
	}
	if !strings.HasPrefix(path.Base(words[0]), "python") {
		return path.Base(words[0])
	}
	for _, w := range words[1:] {
		if !strings.HasPrefix(w, "-") {
			return path.Base(w)
		}
		if w == "-c" {
			break
		}
	}
	return ""
}

// provider returns gen_ai.provider.name by what a process runs; "": it is not known.
func provider(cmdline string) string {
	name, _, _ := strings.Cut(program(cmdline), ":")
	name, rest, _ := strings.Cut(name, ".") // vllm.entrypoints.openai.api_server
	for _, p := range providers {
		if name == p.program && rest != "py" {
			return p.name
		}
	}
	return ""
}

// Provider returns gen_ai.provider.name of a server by what it runs, or what the first process of its target runs, and
// whether messages of its engine were read: those of vLLM alone are known. "": it is not known.
func Provider(p, root *recording.Process, engine bool) string {
	if name := provider(p.Cmdline); name != "" {
		return name
	}
	if name := provider(root.Cmdline); name != "" {
		return name
	}
	if engine {
		return "vllm"
	}
	return ""
}

// Service returns a name for a server: that of the program that is known, of the Python script, or of the process.
func Service(p *recording.Process) string {
	if name := provider(p.Cmdline); name != "" {
		return name
	}
	if script, is := strings.CutSuffix(program(p.Cmdline), ".py"); is && script != "" {
		return script
	}
	return p.Comm
}
