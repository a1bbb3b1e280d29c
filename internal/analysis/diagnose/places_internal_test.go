package diagnose

import (
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// TestPlaces: a place is the nearest frame outside of CUDA, libc, allocators and the framework's dispatcher, the
// program's own code first.
func TestPlaces(t *testing.T) {
	const site = "/usr/lib/python3.12/site-packages/"
	python, native, kernel := recordtest.Python, recordtest.Native, recordtest.Kernel
	linear := python("forward", site+"torch/nn/modules/linear.py", 125)
	call := python("_call_impl", site+"torch/nn/modules/module.py", 1751)
	command := python("<module>", "/usr/local/bin/vllm", 8)
	for name, c := range map[string]struct {
		stack []recording.Frame // the leaf first
		want  string
	}{
		"the program's own code": {[]recording.Frame{
			native("at::_ops::linear::call", "libtorch_cpu.so"), linear, call,
			python("step", "/app/infer.py", 12), python("main", "/app/infer.py", 40),
		}, "step (infer.py:12)"},
		"a package, not what it is called through": {[]recording.Frame{
			native("malloc", "libc.so.6"), linear, call,
			python("forward", site+"transformers/models/gpt2/modeling_gpt2.py", 300), call,
			python("execute_model", site+"vllm/v1/worker/gpu_model_runner.py", 2000), command,
		}, "forward (transformers/models/gpt2/modeling_gpt2.py:300)"},
		"a command only calls a package": {[]recording.Frame{
			python("schedule", site+"vllm/v1/core/sched/scheduler.py", 200),
			python("step", site+"vllm/v1/engine/core.py", 400), command,
		}, "schedule (vllm/v1/core/sched/scheduler.py:200)"},
		"code that torch.compile wrote": {[]recording.Frame{
			python("call", "/tmp/torchinductor_root/ov/cov463.py", 2533),
			python("run", site+"torch/_inductor/utils.py", 3013), python("step", "/app/infer.py", 12),
		}, "step (infer.py:12)"},
		"nothing but the framework": {[]recording.Frame{linear, call}, "forward (torch/nn/modules/linear.py:125)"},
		"a native program": {[]recording.Frame{
			native("pthread_mutex_lock", "libc.so.6"), native("je_malloc", "libjemalloc.so.2"),
			native("operator new(unsigned long)", "libstdc++.so.6"),
			native("Batch::add(Request const&)", "server"), native("main", "server"),
		}, "Batch::add(Request const&) (server)"},
		"the dispatcher": {[]recording.Frame{
			kernel("futex_wait"), native("cuStreamSynchronize", "libcuda.so.1"),
			native("c10::Dispatcher::call", "libtorch_cpu.so"),
			native("at::_ops::item::call", "libtorch_cpu.so"), native("run_step", "server"),
		}, "run_step (server)"},
		"functions without a name": {[]recording.Frame{
			native("libc.so.6+0x1234", "libc.so.6"), native("libcuda.so.580+0x9", "libcuda.so.580"),
			native("libtorch_cpu.so+0x77", "libtorch_cpu.so"),
			native("libmodel.so+0x4567", "libmodel.so"),
		}, "libmodel.so+0x4567"},
		"a caller with a name is worth more": {[]recording.Frame{
			native("libmodel.so+0x4567", "libmodel.so"), native("run_step", "server"),
		}, "run_step (server)"},
	} {
		b := recordtest.New()
		stack := b.Stack(c.stack...)
		p := newPlaces(b.Recording())
		if got := p.list[p.of(stack)].text(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestFewSamplesAreNoPlace: one of many functions needs five samples, or an event, to be named; the one of most time
// does not.
func TestFewSamplesAreNoPlace(t *testing.T) {
	of := func(name string, time, seen uint64) dominant {
		return dominant{
			place: place{code: code{name: name, file: "server"}, kind: recording.NativeFrame},
			time:  time,
			seen:  seen,
		}
	}
	for _, c := range []struct {
		list []dominant
		want string
	}{
		{[]dominant{of("a", 40, 5), of("b", 35, 1), of("c", 25, 1)}, "a (server)"},
		{[]dominant{of("a", 40, 4), of("b", 35, 1), of("c", 25, 1)}, ""},
		{[]dominant{of("a", 60, 1), of("b", 40, 1)}, "a (server)"},
		{nil, ""},
	} {
		if got := placeOf(c.list); got != c.want {
			t.Errorf("%+v: %q, want %q", c.list, got, c.want)
		}
	}
}
