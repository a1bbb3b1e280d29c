package threads

import (
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

func native(name string) recording.Frame {
	return recording.Frame{Kind: recording.NativeFrame, Name: name, File: "libpython3.11.so.1.0"}
}

func python(name, file string) recording.Frame {
	return recording.Frame{Kind: recording.PythonFrame, Name: name, File: file, Line: 1}
}

// stacks makes a recording whose stack i+1 is the i-th, each given from its leaf on.
func stacks(all ...[]recording.Frame) (*recording.Recording, []uint64) {
	rec := &recording.Recording{}
	var numbers []uint64
	for _, frames := range all {
		parent := int32(-1)
		for i := len(frames) - 1; i >= 0; i-- {
			rec.Meta.Frames = append(rec.Meta.Frames, frames[i])
			rec.Meta.Stacks = append(rec.Meta.Stacks,
				recording.Node{Parent: parent, Frame: uint32(len(rec.Meta.Frames) - 1)})
			parent = int32(len(rec.Meta.Stacks) - 1)
		}
		numbers = append(numbers, uint64(len(rec.Meta.Stacks)))
	}
	return rec, numbers
}

// asleep is the kernel's frames of a thread that sleeps in a futex (Linux 6.18).
func asleep() []recording.Frame {
	var out []recording.Frame
	for _, name := range []string{
		"schedule", "futex_do_wait", "__futex_wait", "futex_wait", "do_futex", "__x64_sys_futex", "do_syscall_64",
		"entry_SYSCALL_64_after_hwframe",
	} {
		out = append(out, recording.Frame{Kind: recording.KernelFrame, Name: name})
	}
	return out
}

func TestActivities(t *testing.T) {
	other := recording.Frame{Kind: recording.NativeFrame, Name: "load", File: "libmodel.so"}
	for name, c := range map[string]struct {
		frames []recording.Frame
		want   Activity
	}{
		"GIL by its own name": {
			[]recording.Frame{native("pthread_cond_timedwait"), native("take_gil"), native("PyEval_RestoreThread")},
			GIL,
		},
		"GIL in a stripped build": {
			[]recording.Frame{
				native("__futex_abstimed_wait_common"), native("pthread_cond_timedwait@@GLIBC_2.3.2"),
				native("PyEval_RestoreThread"), python("run", "a.py"),
			},
			GIL,
		},
		"GIL at an eval break": {
			[]recording.Frame{
				native("pthread_cond_clockwait"), native("_PyEval_EvalFrameDefault"), python("run", "a.py"),
			},
			GIL,
		},
		"GIL without any name": {
			[]recording.Frame{
				native("pthread_cond_timedwait"), native("python3.12+0x2f10"), native("python3.12+0x81aa"),
				python("run", "a.py"),
			},
			GIL,
		},
		"GIL asleep, without a name": {
			append(
				asleep(), native("__lll_lock_wait"), native("__pthread_mutex_cond_lock"),
				native("pthread_cond_timedwait"), native("libpython3.11.so.1.0+0x24f86e"),
				native("_PyEval_EvalFrameDefault"), python("run", "a.py"),
			),
			GIL,
		},
		"allocation, asleep": {append(asleep(), native("mmap"), native("sysmalloc")), allocation},
		"a condition of C++": {
			[]recording.Frame{
				native("pthread_cond_timedwait"), native("std::condition_variable::wait_for"),
				native("PyEval_CallFunction"),
			},
			Other,
		},
		"restoring without a wait": {
			[]recording.Frame{native("clock_gettime"), native("PyEval_RestoreThread")}, Other,
		},
		"garbage collection": {
			[]recording.Frame{native("visit_decref"), native("gc_collect_main"), python("run", "a.py")}, GC,
		},
		"collection without a name": {
			[]recording.Frame{
				native("libpython3.11.so.1.0+0x61d763"), native("_PyEval_EvalFrameDefault"),
				python("[garbage collection]", ""), python("run", "a.py"),
			},
			GC,
		},
		"native code of that name": {[]recording.Frame{native("[garbage collection]"), python("run", "a.py")}, Other},
		"collect of something else": {
			[]recording.Frame{{Kind: recording.NativeFrame, Name: "collect", File: "libother.so"}}, Other,
		},
		"allocation": {
			[]recording.Frame{native("_int_malloc"), native("malloc"), python("run", "a.py")}, allocation,
		},
		"allocation of the device": {
			[]recording.Frame{native("ioctl"), native("cuMemAlloc_v2"), native("cudaMalloc")}, allocation,
		},
		"pickle in Python": {
			[]recording.Frame{python("dump", "/usr/lib/python3.11/multiprocessing/reduction.py")}, Serialization,
		},
		"pickle in C": {
			[]recording.Frame{native("memcpy"), native("save_tuple"), native("_pickle_Pickler_dump_impl")},
			Serialization,
		},
		"load of something else":   {[]recording.Frame{other}, Other},
		"allocation within pickle": {[]recording.Frame{native("malloc"), native("save_tuple")}, allocation},
		"compilation by inductor": {
			[]recording.Frame{
				native("read"), python("compile_fx", "/x/torch/_inductor/compile_fx.py"),
				python("_find_and_load", "<frozen importlib._bootstrap>"),
			},
			Compilation,
		},
		"compiled code": {
			[]recording.Frame{
				native("cuLaunchKernel"), python("run", "/x/torch/_inductor/runtime/triton_heuristics.py"),
				python("__call__", "/x/torch/_inductor/output_code.py"),
				python("_fn", "/x/torch/_dynamo/eval_frame.py"),
			},
			Other,
		},
		"compiled code of a graph": {
			[]recording.Frame{
				native("cudaGraphLaunch"), python("run", "/x/torch/_inductor/compile_fx.py"),
				python("run", "/x/torch/_inductor/cudagraph_trees.py"),
			},
			Other,
		},
		"launch by triton": {
			[]recording.Frame{
				native("cuLaunchKernelEx"), python("__call__", "/x/triton/backends/nvidia/driver.py"),
				python("run", "/x/triton/runtime/jit.py"),
			},
			Other,
		},
		"compilation by triton": {
			[]recording.Frame{
				python("make_ptx", "/x/triton/backends/nvidia/compiler.py"), python("run", "/x/triton/runtime/jit.py"),
			},
			Compilation,
		},
		"compilation by dynamo": {
			[]recording.Frame{
				python("step", "/x/torch/_dynamo/symbolic_convert.py"), python("_fn", "/x/torch/_dynamo/eval_frame.py"),
			},
			Compilation,
		},
		"compilation by nvrtc": {[]recording.Frame{native("nvrtcCompileProgram")}, Compilation},
		"import": {
			[]recording.Frame{native("stat64"), python("_path_stat", "<frozen importlib._bootstrap_external>")}, Import,
		},
		"import of a shared library": {
			[]recording.Frame{native("mprotect"), native("_dl_relocate_object"), native("dl_open_worker")}, Import,
		},
		"nothing in particular": {[]recording.Frame{native("sgemm"), python("forward", "model.py")}, Other},
	} {
		t.Run(name, func(t *testing.T) {
			rec, numbers := stacks(c.frames)
			if got := NewClassifier(rec).Of(numbers[0]); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

// TestWhatMemoryIsFor: what a stack allocates for, where its frames say so.
func TestWhatMemoryIsFor(t *testing.T) {
	for name, c := range map[string]struct {
		frames []recording.Frame
		want   Activity
	}{
		"pickle": {[]recording.Frame{native("malloc"), native("save_tuple")}, Serialization},
		"nobody": {[]recording.Frame{native("malloc"), python("run", "a.py")}, Other},
		"an import": {
			[]recording.Frame{native("realloc"), python("_find_and_load", "<frozen importlib._bootstrap>")}, Import,
		},
		"collecting": {[]recording.Frame{native("free"), native("gc_collect_main"), native("save")}, GC},
	} {
		t.Run(name, func(t *testing.T) {
			rec, numbers := stacks(c.frames)
			if got := NewClassifier(rec).For(numbers[0]); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

func TestAFrameHasABitForEachProof(t *testing.T) {
	if n := len(proofs()); n > 32 {
		t.Errorf("%d proofs do not fit the bits of hints", n)
	}
}

func TestFramesOfHostileTrees(t *testing.T) {
	rec := &recording.Recording{Meta: recording.Meta{
		Frames: []recording.Frame{native("a")},
		Stacks: []recording.Node{
			{Parent: 0},
			{Parent: 7},
			{Parent: -5},
			{Parent: -1, Frame: 99},
			{Parent: 4, Frame: 99},
		},
	}}
	for stack, most := range map[uint64]int{
		0: 0, 1: maxDepth, 2: 1, 3: 1, 4: 0, 5: 0, 6: 0, 1 << 63: 0, ^uint64(0): 0,
	} {
		if got := len(Frames(rec, stack)); got > most {
			t.Errorf("stack %d has %d frames, want at most %d", stack, got, most)
		}
	}
}

func TestHolder(t *testing.T) {
	rec, n := stacks(
		[]recording.Frame{native("take_gil"), python("f", "a.py")},
		[]recording.Frame{native("long_add"), python("g", "a.py")},
		[]recording.Frame{native("poll")},
	)
	at := func(ts uint64, tid uint32, stack uint64) {
		rec.Events = append(rec.Events,
			event.Event{Kind: event.Sample, TS: ts, PID: 7, TID: tid, Args: [4]uint64{stack}})
	}
	at(5, 9, n[1])  // before the wait
	at(10, 8, n[1]) // holds it
	at(11, 9, n[2]) // runs, without Python
	at(12, 9, n[0]) // waits itself
	at(13, 8, n[1])
	at(14, 10, n[1])
	at(15, 7, n[1]) // the one that asks
	h := newIndex(rec).Holders(NewClassifier(rec))
	got, ok := h.Of(7, 7, 10, 20)
	if !ok || got.TID != 8 || got.Samples != 2 || got.All != 3 || got.Stack != n[1] {
		t.Errorf("%+v, %v; want thread 8 with 2 of 3 samples", got, ok)
	}
	if _, ok := h.Of(7, 7, 30, 40); ok {
		t.Error("somebody held it when nobody was seen")
	}
}

// TestModulePath: the folder that an environment is installed in says nothing of a module.
func TestModulePath(t *testing.T) {
	for file, want := range map[string]string{
		"/opt/torch/.venv/lib/python3.12/site-packages/numpy/linalg.py": "/numpy/linalg.py",
		"/usr/lib/python3/dist-packages/torch/nn/functional.py":         "/torch/nn/functional.py",
		"/opt/torch/lib/python3.12/json/decoder.py":                     "/json/decoder.py",
		"/opt/torch/lib64/python3.13t/re/__init__.py":                   "/re/__init__.py",
		"/src/pytorch/torch/_tensor.py":                                 "/src/pytorch/torch/_tensor.py",
		"/srv/lib/python-tools/torch.py":                                "/srv/lib/python-tools/torch.py",
		"runpy.py":                                                      "runpy.py",
		"":                                                              "",
	} {
		if got := ModulePath(file); got != want {
			t.Errorf("%s: %s, want %s", file, got, want)
		}
	}
}
