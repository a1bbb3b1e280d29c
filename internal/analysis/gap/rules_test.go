package gap

import (
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// TestWork: what samples of the launching thread say of the time in which it ran.
func TestWork(t *testing.T) {
	const site = "/usr/lib/python3.12/site-packages/"
	loop := native("_PyEval_EvalFrameDefault", "python3.12")
	for name, c := range map[string]struct {
		stack []recording.Frame
		want  cause.ID
	}{
		"python":            {[]recording.Frame{loop, user}, cause.PythonWork},
		"C of the standard": {[]recording.Frame{native("PyUnicode_Join", "python3.12"), user}, cause.PythonWork},
		"memcpy of python": {
			[]recording.Frame{native("__memmove_avx_unaligned_erms", "libc.so.6"), loop, user}, cause.PythonWork,
		},
		"a module of the standard beside the interpreter": {
			[]recording.Frame{native("f_setitem", "array.cpython-311-x86_64-linux-gnu.so"), loop, user},
			cause.PythonWork,
		},
		"numpy": {
			[]recording.Frame{native("DOUBLE_add", "_multiarray_umath.cpython-312-x86_64-linux-gnu.so"), loop, user},
			cause.NativeWork,
		},
		"numpy in an environment of that name": {
			[]recording.Frame{
				native("argpartition_unrolled<...>", "_multiarray_umath.cpython-312-x86_64-linux-gnu.so"), loop,
				python("_wrapfunc", "/opt/torch/.venv/lib/python3.12/site-packages/numpy/_core/fromnumeric.py"), user,
			},
			cause.NativeWork,
		},
		"kernel of an operator that its library generated": {
			[]recording.Frame{
				native("[generated code]", ""), python("embedding_bag", site+"torch/nn/functional.py"), user,
			},
			cause.NativeWork,
		},
		"library of an environment of that name": {
			[]recording.Frame{loop, python("sub", "/opt/torch/lib/python3.12/string.py"), user}, cause.PythonWork,
		},
		"gives memory back": {
			[]recording.Frame{
				kernel("rm_ioctl"), native("ioctl", "libc.so.6"), native("cuMemRelease", "libcuda.so.580.159.04"),
				python("empty_cache", site+"torch/cuda/memory.py"), user,
			},
			cause.Allocation,
		},
		"releases blocks": {
			[]recording.Frame{
				native("c10::cuda::CUDACachingAllocator::Native::ExpandableSegment::unmapHandles", "libc10_cuda.so"),
				python("empty_cache", site+"torch/cuda/memory.py"), user,
			},
			cause.Allocation,
		},
		"hands out cached memory": {
			[]recording.Frame{
				native("c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::malloc", "libc10_cuda.so"), user,
			},
			cause.LaunchOverhead,
		},
		"native": {
			[]recording.Frame{native("simulate", "server"), native("main", "server")}, cause.NativeWork,
		},
		"host malloc": {[]recording.Frame{native("malloc", "libc.so.6"), loop, user}, cause.PythonWork},
		"gc":          {[]recording.Frame{native("gc_collect_main", "python3.12"), user}, cause.GC},
		"gc in an import": {
			[]recording.Frame{
				native("gc_collect_main", "python3.12"), loop,
				python("_find_and_load", "<frozen importlib._bootstrap>"), user,
			},
			cause.Compilation,
		},
		"pickle": {
			[]recording.Frame{native("save", "_pickle.cpython-312-x86_64-linux-gnu.so"), user}, cause.Serialization,
		},
		"malloc of pickle": {
			[]recording.Frame{
				native("_int_realloc", "libc.so.6"), native("realloc", "libc.so.6"),
				native("_Pickler_Write", "_pickle.cpython-312-x86_64-linux-gnu.so"), loop, user,
			},
			cause.Serialization,
		},
		"malloc of imports": {
			[]recording.Frame{
				native("malloc", "libc.so.6"), native("r_object", "python3.12"),
				python("_find_and_load", "<frozen importlib._bootstrap>"), user,
			},
			cause.Compilation,
		},
		"triton": {
			[]recording.Frame{native("llvm::SelectionDAG::combine", "libtriton.so"), user}, cause.Compilation,
		},
		"import": {
			[]recording.Frame{loop, python("_find_and_load", "<frozen importlib._bootstrap>"), user}, cause.Compilation,
		},
		"fast tokenizer": {
			[]recording.Frame{
				native("<tokenizers::models::bpe::BPE as Model>::tokenize", "tokenizers.abi3.so"),
				python("_batch_encode_plus", site+"transformers/tokenization_utils_fast.py"), user,
			},
			cause.Preprocessing,
		},
		"own tokenizer": {
			[]recording.Frame{loop, python("tokenize_batch", "/app/text.py"), user}, cause.Preprocessing,
		},
		"jpeg": {
			[]recording.Frame{
				native("jsimd_idct_islow_avx2", "libjpeg.so.62"), python("load", site+"PIL/ImageFile.py"), user,
			},
			cause.Preprocessing,
		},
		"native name": {
			[]recording.Frame{native("decode_image_rgb", "server"), native("main", "server")}, cause.Preprocessing,
		},
		"reads JSON": {
			[]recording.Frame{
				loop, python("raw_decode", "/usr/lib/python3.12/json/decoder.py"), python("parse_request", "/app/serve.py"),
				user,
			},
			cause.Serialization,
		},
		"reads JSON in Rust": {
			[]recording.Frame{native("orjson::deserialize", "orjson.cpython-312-x86_64-linux-gnu.so"), user},
			cause.Serialization,
		},
		"reads JSON in C++": {
			[]recording.Frame{
				native("nlohmann::basic_json<...>::parse", "llama-server"), native("common_chat_parse", "llama-server"),
			},
			cause.Serialization,
		},
		"eager framework": {
			[]recording.Frame{loop, python("forward", site+"torch/nn/modules/linear.py"), user}, cause.LaunchOverhead,
		},
		"dispatcher of tensors on the host, for 19 ms without a launch": {
			[]recording.Frame{
				native("c10::Dispatcher::call", "libtorch_cpu.so"),
				native("at::_ops::add_Tensor::call", "libtorch_cpu.so"), user,
			},
			cause.PythonWork,
		},
		"cuda": {
			[]recording.Frame{
				native("libcuda.so.1+0x28f112", "libcuda.so.1"), native("cudaLaunchKernel", "libcudart.so.13"), user,
			},
			cause.LaunchOverhead,
		},
		"operator on CPU": {
			[]recording.Frame{
				native("at::native::AVX512::vec_softmax_lastdim_kernel", "libtorch_cpu.so"),
				native("at::_ops::softmax", "libtorch_cpu.so"), user,
			},
			cause.NativeWork,
		},
		"sort on CPU": {
			[]recording.Frame{
				native("std::__introsort_loop<...>", "libtorch_cpu.so"),
				native("c10::function_ref<...>::callback_fn<...>", "libtorch_cpu.so"),
				native("at::TensorIteratorBase::for_each", "libtorch_cpu.so"),
				native("at::native::sort_kernel", "libtorch_cpu.so"),
				native("at::_ops::sort_stable::call", "libtorch_cpu.so"), user,
			},
			cause.NativeWork,
		},
		"upsample on CPU": {
			[]recording.Frame{
				native("c10::function_ref<...>::callback_fn<...>", "libtorch_cpu.so"),
				native("at::native::upsample_bilinear2d_aa_kernel_impl", "libtorch_cpu.so"),
				native("c10::impl::wrap_kernel_functor_unboxed_<...>::call", "libtorch_cpu.so"),
				python("interpolate", site+"torch/nn/functional.py"), user,
			},
			cause.NativeWork,
		},
		"dispatcher for a module": {
			[]recording.Frame{
				native("at::_ops::add_Tensor::call", "libtorch_cpu.so"),
				python("forward", site+"torch/nn/modules/linear.py"), user,
			},
			cause.LaunchOverhead,
		},
		"text of a tensor": {
			[]recording.Frame{
				native("at::native::isfinite", "libtorch_cpu.so"),
				native("torch::autograd::THPVariable_isfinite", "libtorch_python.so"),
				python("__init__", site+"torch/_tensor_str.py"), python("__repr__", site+"torch/_tensor.py"), user,
			},
			cause.PythonWork,
		},
		"kernel of a GPU": {
			[]recording.Frame{
				native("at::native::gpu_kernel_impl<...>", "libtorch_cuda.so"),
				native("c10::impl::wrap_kernel_functor_unboxed_<...>::call", "libtorch_cpu.so"), user,
			},
			cause.LaunchOverhead,
		},
		"operator of tensors on the host": {
			[]recording.Frame{
				native("c10::impl::wrap_kernel_functor_unboxed_<...>::call", "libtorch_cpu.so"),
				native("at::native::add", "libtorch_cpu.so"), user,
			},
			cause.PythonWork,
		},
		"writes JSON": {
			[]recording.Frame{
				native("_Py_dg_dtoa", "python3.12"), python("iterencode", "/usr/lib/python3.12/json/encoder.py"), user,
			},
			cause.Serialization,
		},
		"transform in torch": {
			[]recording.Frame{
				native("at::native::AVX2::upsample", "libtorch_cpu.so"),
				python("interpolate", site+"torch/nn/functional.py"),
				python("resize", site+"torchvision/transforms/v2/functional/_geometry.py"), user,
			},
			cause.Preprocessing,
		},
		"modeling": {
			[]recording.Frame{loop, python("forward", site+"transformers/models/gpt2/modeling_gpt2.py"), user},
			cause.LaunchOverhead,
		},
		"vLLM runner": {
			[]recording.Frame{loop, python("_prepare_inputs", site+"vllm/v1/worker/gpu_model_runner.py"), user},
			cause.PythonWork,
		},
		"vLLM scheduler": {
			[]recording.Frame{loop, python("schedule", site+"vllm/v1/core/sched/scheduler.py"), user}, cause.PythonWork,
		},
		"vLLM sampler": {
			[]recording.Frame{loop, python("forward", site+"vllm/v1/sample/sampler.py"), user}, cause.LaunchOverhead,
		},
		"vLLM attention": {
			[]recording.Frame{loop, python("build", site+"vllm/v1/attention/backends/flash_attn.py"), user},
			cause.LaunchOverhead,
		},
		"vLLM detokenizer": {
			[]recording.Frame{loop, python("update", site+"vllm/v1/engine/detokenizer.py"), user}, cause.Preprocessing,
		},
		"SGLang layer": {
			[]recording.Frame{loop, python("forward", site+"sglang/srt/layers/linear.py"), user}, cause.LaunchOverhead,
		},
		"SGLang scheduler": {
			[]recording.Frame{loop, python("get_next_batch_to_run", site+"sglang/srt/managers/scheduler.py"), user},
			cause.PythonWork,
		},
		"SGLang tokenizer": {
			[]recording.Frame{
				loop, python("_tokenize_one_request", site+"sglang/srt/managers/tokenizer_manager.py"), user,
			},
			cause.Preprocessing,
		},
		"model's tokenizer": {
			[]recording.Frame{loop, python("bpe", site+"transformers/models/gpt2/tokenization_gpt2.py"), user},
			cause.Preprocessing,
		},
		"image for diffusers": {
			[]recording.Frame{loop, python("resize", site+"diffusers/image_processor.py"), user}, cause.Preprocessing,
		},
		"llama.cpp tokenizes": {
			[]recording.Frame{
				native("llm_tokenizer_bpe_session::tokenize", "libllama.so"), native("main", "llama-server"),
			},
			cause.Preprocessing,
		},
		"llama.cpp on CPU": {
			[]recording.Frame{native("ggml_compute_forward_mul_mat", "libggml-cpu.so"), native("main", "llama-server")},
			cause.NativeWork,
		},
		"llama.cpp launches": {
			[]recording.Frame{native("ggml_cuda_op_mul_mat", "libggml-cuda.so"), native("main", "llama-server")},
			cause.LaunchOverhead,
		},
		"launch by triton": {
			[]recording.Frame{loop, python("__call__", site+"triton/backends/nvidia/driver.py"), user},
			cause.LaunchOverhead,
		},
		"launch by compiled code": {
			[]recording.Frame{loop, python("call", "/tmp/torchinductor_root/ov/cov463.py"), user},
			cause.LaunchOverhead,
		},
		"page fault": {
			[]recording.Frame{
				kernel("clear_page_erms"), kernel("handle_mm_fault"), kernel("asm_exc_page_fault"),
				native("__memset_avx2_unaligned_erms", "libc.so.6"), user,
			},
			cause.PageFaults,
		},
		"page fault of an object that is received": {
			[]recording.Frame{
				kernel("clear_page_erms"), kernel("handle_mm_fault"), kernel("asm_exc_page_fault"),
				native("__memcpy_avx_unaligned_erms", "libc.so.6"),
				python("Connection._recv", "/usr/lib/python3.11/multiprocessing/connection.py"), user,
			},
			cause.Serialization,
		},
		"page cache": {
			[]recording.Frame{kernel("filemap_read"), kernel("ext4_file_read_iter"), native("read", "libc.so.6"), user},
			cause.Disk,
		},
		"spinning for GIL": {[]recording.Frame{native("take_gil", "python3.12"), user}, cause.GIL},
	} {
		t.Run(name, func(t *testing.T) {
			want := map[cause.ID]uint64{cause.HostSync: drained}
			want[cause.LaunchOverhead] += launched
			want[c.want] += middle
			steps := frame().sampled(leader, c.stack...).want(t, want)
			if s := of(t, steps, c.want); c.want != cause.LaunchOverhead &&
				(s.Sure != Seen || s.TID != leader || s.Stack == 0 || s.WaiterTID != 0) {
				t.Errorf("step %+v", s)
			}
		})
	}
}

// TestUnseenLaunches: operators that a program calls are launching where nothing shows that they launch nothing.
func TestUnseenLaunches(t *testing.T) {
	for name, c := range map[string]struct {
		until uint64 // launches are recorded up to this time
		want  cause.ID
	}{
		"recorded":         {calltest.Second, cause.PythonWork},
		"up to the middle": {10 * ms, cause.LaunchOverhead},
		"not recorded":     {0, cause.LaunchOverhead},
	} {
		t.Run(name, func(t *testing.T) {
			s := frame().sampled(leader, native("at::_ops::add_Tensor::call", "libtorch_cpu.so"), user)
			seen := s.Meta.GPU.Windows[0]
			s.Meta.GPU.Windows[0].Calls = false
			seen.Activity, seen.To = false, start+c.until
			s.Meta.GPU.Windows = append(s.Meta.GPU.Windows, seen)
			want := map[cause.ID]uint64{cause.HostSync: drained}
			want[cause.LaunchOverhead] += launched
			want[c.want] += middle
			s.want(t, want)
		})
	}
}

// TestSlowDispatch: operators that a program calls are launching where launches follow, however slow they are.
func TestSlowDispatch(t *testing.T) {
	s := newScene()
	s.run(1*us, 9*us, 100*us)
	for at := uint64(600 * us); at < 20*ms; at += 900 * us {
		s.run(at, at+10*us, at+12*us)
	}
	s.Samples(leader, start+200*us, start+19*ms, 40, s.Stack(
		native("at::_ops::add_Tensor::call", "libtorch_cpu.so"), user,
	), event.Whole)
	_, w := s.build(t)
	idle := map[cause.ID]uint64{}
	for i := range w.Steps {
		if st := &w.Steps[i]; st.To <= start+19*ms {
			idle[st.Cause] += st.To - st.From
		}
	}
	if idle[cause.LaunchOverhead] < 18*ms || idle[cause.PythonWork] != 0 {
		t.Errorf("idle for %v", idle)
	}
}

// TestWaits: what the launching thread was blocked in, where nobody of the target ended it.
func TestWaits(t *testing.T) {
	file := recordtest.Off{
		Call:    sysPread,
		Blocked: 18*ms - 10*us,
		Inode:   777,
		Type:    8,
		Flags:   event.Uninterruptible | event.FromIRQ,
	}
	recv := func(inode uint64) recordtest.Off {
		return recordtest.Off{
			Call:    sysRecv,
			Blocked: 18*ms - 10*us,
			Arg:     9,
			Inode:   inode,
			Type:    12,
			Flags:   event.FromIRQ,
		}
	}
	irq := func(call uint16) recordtest.Off {
		return recordtest.Off{Call: call, Blocked: 18*ms - 10*us, Flags: event.FromIRQ}
	}
	fault := recordtest.Off{Call: event.NoSyscall, Blocked: 18*ms - 10*us, Flags: event.MajorFault}
	for name, c := range map[string]struct {
		off   recordtest.Off
		roles map[uint64]recording.Role
		want  cause.ID
	}{
		"disk":        {file, nil, cause.Disk},
		"swap":        {fault, nil, cause.PageFaults},
		"minor fault": {irq(event.NoSyscall), nil, cause.PageFaults},
		"sleep":       {irq(sysSleep), nil, cause.Sleep},
		"accept":      {irq(sysAccept), nil, cause.NoWork},
		"connect":     {irq(sysConnect), nil, cause.Network},
		"accepted connection": {
			recv(5), map[uint64]recording.Role{5: recording.Accepted, 6: recording.Connected}, cause.NoWork,
		},
		"own connection": {
			recv(6), map[uint64]recording.Role{5: recording.Accepted, 6: recording.Connected}, cause.Network,
		},
		"closed, of a server": {recv(7), map[uint64]recording.Role{5: recording.Listening}, cause.NoWork},
		"closed, of a client": {recv(7), map[uint64]recording.Role{6: recording.Connected}, cause.Network},
		"poll of a server":    {irq(sysPoll), map[uint64]recording.Role{5: recording.Listening}, cause.NoWork},
		"poll of a client":    {irq(sysPoll), map[uint64]recording.Role{6: recording.Connected}, cause.Network},
		"poll of nothing":     {irq(sysPoll), nil, cause.Sleep},
		"nobody can tell":     {recv(8), map[uint64]recording.Role{8: recording.Unclear}, cause.Unknown},
		"unclear, a server": {
			recv(8), map[uint64]recording.Role{5: recording.Listening, 8: recording.Unclear}, cause.NoWork,
		},
		"unclear, a client": {
			recv(8), map[uint64]recording.Role{6: recording.Connected, 8: recording.Unclear}, cause.Network,
		},
		"unclear, both": {
			recv(8),
			map[uint64]recording.Role{5: recording.Listening, 6: recording.Connected, 8: recording.Unclear},
			cause.Unknown,
		},
		"poll of unclear": {irq(sysPoll), map[uint64]recording.Role{8: recording.Unclear}, cause.Unknown},
		"poll, both": {
			irq(sysPoll),
			map[uint64]recording.Role{5: recording.Listening, 6: recording.Connected, 8: recording.Unclear},
			cause.NoWork,
		},
		"accept, unclear": {irq(sysAccept), map[uint64]recording.Role{8: recording.Unclear}, cause.NoWork},
	} {
		t.Run(name, func(t *testing.T) {
			s := frame()
			for inode, role := range c.roles {
				s.Meta.Objects = append(s.Meta.Objects,
					recording.Object{PID: leader, Inode: inode, Name: "socket:[5]", Role: role})
			}
			steps := s.off(c.off).sampled(leader, user).want(t, map[cause.ID]uint64{
				cause.HostSync: drained, cause.LaunchOverhead: launched, c.want: 18 * ms,
				cause.PythonWork: middle - 18*ms,
			})
			if st := of(t, steps, c.want); st.Wait == None || st.TID != leader {
				t.Errorf("step %+v", st)
			}
		})
	}
	// Who polls nothing that is connected to anybody is woken by a timer's interrupt; without one it is a guess.
	for flags, want := range map[event.Flags]Confidence{event.FromIRQ: Inferred, 0: Guessed} {
		off := irq(sysPoll)
		off.Flags = flags
		steps := frame().off(off).sampled(leader, user).want(t, map[cause.ID]uint64{
			cause.HostSync: drained, cause.LaunchOverhead: launched, cause.Sleep: 18 * ms,
			cause.PythonWork: middle - 18*ms,
		})
		if st := of(t, steps, cause.Sleep); st.Sure != want {
			t.Errorf("flags %d: sure %d, want %d", flags, st.Sure, want)
		}
	}
	t.Run("mapped file", func(t *testing.T) {
		s := frame()
		fault.Stack = s.Stack(
			kernel("folio_wait_bit_common"),
			kernel("filemap_fault"),
			kernel("asm_exc_page_fault"),
			user,
		)
		s.off(fault).sampled(leader, user).want(t, map[cause.ID]uint64{
			cause.HostSync: drained, cause.LaunchOverhead: launched, cause.Disk: 18 * ms,
			cause.PythonWork: middle - 18*ms,
		})
	})
}

// TestNoCPU: a thread that could run.
func TestNoCPU(t *testing.T) {
	rest := map[cause.ID]uint64{
		cause.HostSync:       drained,
		cause.LaunchOverhead: launched,
		cause.PythonWork:     middle - 18*ms,
	}
	with := func(id cause.ID) map[cause.ID]uint64 {
		out := map[cause.ID]uint64{id: 18 * ms}
		for k, v := range rest {
			out[k] = v
		}
		return out
	}
	taken := recordtest.Off{Call: event.NoSyscall, Flags: event.Preempted, By: [2]uint32{99, 98}}
	steps := frame().off(taken).sampled(leader, user).want(t, with(cause.NoCPU))
	if s := of(t, steps, cause.NoCPU); s.PID != 99 || s.TID != 98 || s.WaiterTID != leader || s.Sure != Seen {
		t.Errorf("step %+v, want the thread that took the CPU", s)
	}
	late := recordtest.Off{
		Call:    sysSleep,
		Blocked: 17 * ms,
		Flags:   event.FromIRQ,
	} // and for a ms another thread has the CPU
	slept := with(cause.Sleep)
	slept[cause.Sleep], slept[cause.NoCPU] = 17*ms, 1*ms
	frame().off(late).sampled(leader, user).want(t, slept)
	idle := recordtest.Off{Call: event.NoSyscall, Flags: event.Preempted}
	frame().off(idle).sampled(leader, user).want(t, with(cause.Throttled))
	s := frame().off(idle).sampled(leader, user) // of a real-time thread: the quota held nobody back
	s.Meta.Pressure = []recording.Pressure{{TS: start - ms, Throttled: 5 * ms}, {TS: start + 900*ms, Throttled: 5 * ms}}
	if st := of(t, s.want(t, with(cause.NoCPU)), cause.NoCPU); st.Sure != Inferred || st.WaiterTID != 0 {
		t.Errorf("step %+v", st)
	}
	s = frame().off(idle).sampled(leader, user)
	s.Meta.Pressure = []recording.Pressure{{TS: start - ms}, {TS: start + 900*ms, Throttled: ms}}
	s.want(t, with(cause.Throttled))
	s = frame().off(taken).sampled(leader, user)
	s.Meta.Pressure = []recording.Pressure{{TS: start - ms}, {TS: start + 900*ms, Throttled: 30 * ms}}
	if st := of(t, s.want(t, with(cause.Throttled)), cause.Throttled); st.Sure != Inferred {
		t.Errorf("step %+v", st)
	}
	s = frame().off(taken).sampled(leader, user)
	s.Meta.Pressure = []recording.Pressure{{TS: start - ms}, {TS: start + 900*ms, Throttled: 17 * ms}}
	s.want(t, with(cause.NoCPU)) // it stood still for less than that
	s = frame().off(taken).
		off(recordtest.Off{
			TS: 30 * ms, Dur: 4 * ms, Call: event.NoSyscall, Flags: event.Preempted, By: [2]uint32{99, 98},
		}).sampled(leader, user)
	s.Meta.Pressure = []recording.Pressure{{TS: start - ms}, {TS: start + 900*ms, Throttled: 5 * ms}}
	s.want(t, with(cause.NoCPU)) // the shorter wait explains what the cgroup stood still, and it is not in the gap
}

// TestCalls: the thread was in a call.
func TestCalls(t *testing.T) {
	for name, c := range map[string]struct {
		call string
		want cause.ID
	}{
		"alloc": {"cuMemAlloc_v2", cause.Allocation}, "free": {"cuMemFree_v2", cause.Allocation},
		"pin": {"cuMemHostRegister_v2", cause.Allocation}, "module": {"cuModuleLoadData", cause.Compilation},
		"link": {"cuLinkComplete", cause.Compilation}, "graph": {"cuGraphInstantiateWithFlags", cause.Compilation},
		"copy": {"cuMemcpyHtoD_v2", cause.SyncCopy}, "enqueued copy": {"cuMemcpyHtoDAsync_v2", cause.LaunchOverhead},
		"sync": {"cuCtxSynchronize", cause.HostSync}, "first launch": {"cuLaunchKernel", cause.Compilation},
		"slow launch": {"cuLaunchKernelEx", cause.LaunchOverhead},
	} {
		t.Run(name, func(t *testing.T) {
			s := frame()
			if strings.HasPrefix(c.call, "cuLaunch") {
				if c.want != cause.Compilation {
					s.call(c.call, 2*us, 3*us, 77)
				}
				s.call(c.call, 1*ms, 18*ms, 77)
			} else {
				s.Do(c.call, int64(1*ms), 18*ms)
			}
			s.sampled(leader, user)
			_, w := s.build(t)
			if got := w.sums()[c.want]; got < 18*ms || got > 18*ms+drained+launched+maxLaunchInterval {
				t.Errorf("%s took %d ns, want 18 ms and what is always there", c.want, got)
			}
		})
	}
}
