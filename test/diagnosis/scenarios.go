// Package diagnosis holds what InferScope says of programs against what they really did: programs with causes planted
// in them run on the simulated CUDA under the real daemon, with its probes and agent, and write down when they did
// what. The analysis sees no names of scenarios: they reach the programs by their standard input.
package diagnosis

import (
	"slices"
	"strings"
	"time"
)

// scenario is one program and what is planted in it.
type scenario struct {
	name string
	// of testdata/scenarios; "{answer}" and "{http}" are ports of servers that answer, "{cpu}" is a CPU that nothing
	// else is bound to
	script string
	python bool     // prog.py, not prog
	env    []string // the simulator's knobs
	want   string   // key of the dearest cause that is planted; "": the GPU is busy, and nobody is to be accused

	copies    string        // cause of the time in which copies run and no kernel does; "": none
	kernels   [][2]string   // causes of the time in which kernels run whose names begin so: {"gemvx", "bandwidth-bound"}
	idle      bool          // the verdict has to be "idle"
	left      bool          // the verdict has to be "healthy", and the cause what is left to gain
	cpuOnly   bool          // no GPU is used
	windows   bool          // the daemon's default: windows of GPU activity
	request   time.Duration // requests come so long after the last answer, by TCP
	http      bool          // by HTTP
	hogs      int           // processes that compute, on {cpu}
	quota     int           // percent of a CPU that the program's cgroup has; 0: no quota
	usual     bool          // part of the shorter test
	fine      bool          // two kinds of CPU work, told apart by samples alone: 499 a second, for 99 leave a standard deviation of 4%
	worth     int           // of a twin: how many of the program's kernels each of its own stands for; 0: one
	neighbour bool          // runs at the usual priority: its neighbours are the matter
}

// step is work of 1 ms that keeps the GPU busy and its queue short.
const step = "kernels 20 gemm_us50; wait; "

// sharing makes a scenario take how much work a microsecond is from a file, or write it there: a program and its twin
// that share one do the same work.
func (s *scenario) sharing(rates string) *scenario {
	same := *s
	same.env = append(slices.Clone(s.env), "RATES="+rates)
	return &same
}

// knob sets one of the simulator's knobs.
func knob(name, value string) []string { return []string{name + "=" + value} }

// asOnGPU lets the nodes of graphs follow each other as closely as those of the twin of `launches` in test/gpu do on an
// H200: in 0.97 µs for kernels of
// 0.87 µs.
func asOnGPU() []string { return knob("CUDASIM_GRAPH_NODE_NS", "100") }

// scenarios are all of them, by groups.
func scenarios() []scenario {
	var all []scenario
	for _, group := range [][]scenario{
		alone(), waiting(), inPython(), pairs(), several(), healthy(), busy(), mixed(), blind(), blindMixed(),
		blindThreads(), blindServers(), blindOversights(), blindPlatforms(), rows(), operators(), habits(),
	} {
		all = append(all, group...)
	}
	return all
}

// alone are single causes in native programs: the CPU works, or the driver does.
func alone() []scenario {
	alloc := knob("CUDASIM_ALLOC_NS", "1500000")
	return []scenario{
		{name: "native work", script: step + "native 3000", want: "native-work", usual: true},
		{
			name:   "native work, unlike kernels",
			script: "kernels 3 attn_us400; kernels 40 gemm_us10; wait; pack 4000",
			want:   "native-work",
		},
		{name: "native work, windows", script: step + "native 3000", want: "native-work", windows: true, usual: true},
		{name: "tokenizer", script: step + "tokenize 3000", want: "preprocessing"},
		{name: "image decoding", script: step + "decode 2500; resize 1500", want: "preprocessing", usual: true},
		{
			name:   "launches, dispatched",
			script: "burst 100 20 tiny_us3; wait",
			env:    asOnGPU(),
			want:   "launch-overhead",
			usual:  true,
		},
		{name: "launches, runtime", script: "rkernels 100 15 tiny_us2; rwait", env: asOnGPU(), want: "launch-overhead"},
		{
			name:   "launches, slow driver",
			script: "burst 100 0 tiny_us2; wait",
			env:    append(asOnGPU(), "CUDASIM_CALL_NS=12000"),
			want:   "launch-overhead",
		},
		{name: "sync at each step", script: "eager 8 25 gemm_us40; wait", want: "host-sync"},
		{name: "sync at each step, runtime", script: "eager 8 25 gemm_us40; rwait", want: "host-sync"},
		{name: "a number fetched at each step", script: "eager 8 25 gemm_us40; item", want: "host-sync"},
		{
			name:   "synchronous upload",
			script: "kernels 10 gemm_us50; wait; copyin 24M",
			want:   "sync-copy",
			copies: "sync-copy",
			usual:  true,
		},
		{
			name:   "synchronous download",
			script: "kernels 10 gemm_us50; wait; copyout 24M",
			want:   "sync-copy",
			copies: "sync-copy",
		},
		{
			name:   "upload not overlapped",
			script: "upload 48M; kernels 40 gemm_us100; lag",
			want:   "copy-not-overlapped",
			copies: "copy-not-overlapped",
		},
		{
			name:   "copies beyond all",
			script: "upload 96M; kernels 10 gemm_us100; download 64M; lag",
			want:   "copy-bound",
			copies: "copy-bound",
		},
		{name: "allocation", script: step + "alloc 2 1M", env: alloc, want: "allocation", usual: true},
		{name: "allocation, runtime", script: step + "ralloc 2 1M", env: alloc, want: "allocation"},
		{
			name:   "pinning",
			script: step + "pin 1 16M",
			env:    knob("CUDASIM_SLOW", "cuMemHostAlloc:*:3000000"),
			want:   "allocation",
		},
		{
			name:   "module loading",
			script: step + "module",
			env:    knob("CUDASIM_SLOW", "cuModuleLoadData:*:4000000"),
			want:   "compilation",
		},
		{
			name:   "host function",
			script: "callback 4000 10 gemm_us100",
			env:    knob("CUDASIM_HOSTFN_NS", "4000000"),
			want:   "dependency",
		},
		{
			name:   "event of another stream",
			script: "across 4000 10 gemm_us100",
			env:    knob("CUDASIM_HOSTFN_NS", "4000000"),
			want:   "dependency",
			usual:  true,
		},
		{name: "fresh memory", script: step + "fault 16M", want: "page-faults"},
	}
}

// waiting are single causes in native programs that do nothing themselves.
func waiting() []scenario {
	return []scenario{
		{name: "worker thread", script: step + "worker 3000", want: "worker"},
		{name: "loader thread, queue", script: step + "loader 5000", want: "worker"},
		{name: "worker process, pipe", script: step + "child 3000", want: "worker", usual: true},
		{name: "tokenizing process, socket", script: step + "frontend 3000", want: "worker"},
		{name: "mutex", script: step + "lock 4000", want: "lock", usual: true},
		{name: "read-write lock", script: step + "rwlock 4000", want: "lock"},
		{name: "contended mutex", script: step + "contend 6000 500", want: "lock"},
		{name: "sleep", script: step + "sleep 3000", want: "sleep"},
		{name: "reading a file", script: step + "read 8M", want: "disk"},
		{name: "writing a file through", script: step + "sync 4M", want: "disk"},
		{name: "answer of a server", script: step + "ask {answer} 5000", want: "network"},
		{
			name:    "idle server",
			script:  "serve; kernels 20 gemm_us50; wait",
			request: 8 * time.Millisecond,
			want:    "no-work",
			idle:    true,
			usual:   true,
		},
		{
			name:    "idle server, connection for each",
			script:  "accept; kernels 20 gemm_us50; wait",
			request: 8 * time.Millisecond,
			want:    "no-work",
			idle:    true,
		},
		{name: "no CPU", script: "cpu {cpu}; " + step + "native 2000", hogs: 3, want: "no-cpu", neighbour: true},
		{name: "throttled", script: step + "native 3000", quota: 25, want: "throttled"},
	}
}

// inPython are single causes in Python programs.
func inPython() []scenario {
	return []scenario{
		{name: "Python sampling", script: step + "python 4000", python: true, want: "python-work"},
		{name: "Python beam search", script: step + "beams 4000", python: true, want: "python-work"},
		{name: "Python, windows", script: step + "python 4000", python: true, want: "python-work", windows: true},
		{
			name:   "tokenizer in Python",
			script: step + "pytokenize 4000",
			python: true,
			want:   "preprocessing",
			usual:  true,
		},
		{name: "JSON", script: step + "json 4000", python: true, want: "serialization"},
		{name: "CSV", script: step + "csv 4000", python: true, want: "preprocessing"},
		{name: "regular expressions", script: step + "regex 4000", python: true, want: "preprocessing"},
		{name: "pickle", script: step + "pickle 4000", python: true, want: "serialization"},
		{name: "garbage collection", script: step + "collect 60000", python: true, want: "gc"},
		{name: "GIL", script: "kernels 20 gemm_us50; gilwait 1", python: true, want: "gil", usual: true},
		{name: "lock in Python", script: step + "plock 4000", python: true, want: "lock"},
		{name: "queue in Python", script: step + "pqueue 4000", python: true, fine: true, want: "worker"},
		{name: "loader process in Python", script: step + "pchild 4000", python: true, want: "worker"},
		{name: "imports", script: step + "import", python: true, want: "compilation"},
		{name: "sleep in Python", script: step + "psleep 4000", python: true, want: "sleep"},
		{name: "answer over HTTP", script: step + "fetch {http} 6000", python: true, want: "network"},
		{
			name:    "idle HTTP server",
			script:  "handle; kernels 20 gemm_us50; wait",
			python:  true,
			request: 12 * time.Millisecond,
			http:    true,
			want:    "no-work",
			idle:    true,
		},
		{
			name:    "no GPU at all",
			script:  "nocuda; python 5000; psleep 1000",
			python:  true,
			want:    "python-work",
			cpuOnly: true,
		},
	}
}

// pairs have two causes, one of which costs at least twice what the other does.
func pairs() []scenario {
	return []scenario{
		{name: "tokenizer over sleep", script: step + "tokenize 4000; sleep 1500", want: "preprocessing"},
		{name: "sleep over tokenizer", script: step + "tokenize 1500; sleep 4500", want: "sleep"},
		{name: "native over answer", script: step + "native 6000; ask {answer} 2000", want: "native-work"},
		{name: "answer over native", script: step + "native 2000; ask {answer} 6000", want: "network"},
		{name: "worker over native", script: step + "worker 5000; native 1500", want: "worker"},
		{
			name:   "mutex over allocation",
			script: step + "lock 5000; alloc 1 1M",
			env:    knob("CUDASIM_ALLOC_NS", "1500000"),
			want:   "lock",
		},
		{
			name:   "allocation over native",
			script: step + "alloc 3 1M; native 1500",
			env:    knob("CUDASIM_ALLOC_NS", "1500000"),
			want:   "allocation",
		},
		{
			name:   "Python over pickle",
			script: step + "python 5000; pickle 2000",
			python: true,
			fine:   true,
			want:   "python-work",
		},
		{
			name:   "pickle over Python",
			script: step + "pickle 5000; python 2000",
			python: true,
			fine:   true,
			want:   "serialization",
		},
		{
			name:   "JSON over sleep",
			script: step + "json 5000; psleep 2000",
			python: true,
			fine:   true,
			want:   "serialization",
		},
		{name: "process over tokenizer", script: step + "child 5000; tokenize 1500", want: "worker"},
		{
			name:   "sampling over tokenizer",
			script: step + "pytokenize 2000; python 5000",
			python: true,
			fine:   true,
			want:   "python-work",
		},
		{
			name:   "launches over native",
			script: "burst 200 20 tiny_us3; wait; native 1500",
			env:    asOnGPU(),
			want:   "launch-overhead",
		},
	}
}

// several have several threads or processes that launch.
func several() []scenario {
	return []scenario{
		{name: "two threads in step", script: step + "native 4000\n" + step + "native 4000", want: "native-work"},
		{
			name:   "two threads that sleep",
			script: step + "sleep 6000\n" + step + "sleep 6000",
			want:   "sleep",
			usual:  true,
		},
		{
			name:   "two processes that tokenize",
			script: step + "tokenize 6000\nprocess " + step + "tokenize 6000",
			want:   "preprocessing",
		},
		{name: "two processes that wait", script: step + "sleep 6000\nprocess " + step + "sleep 6000", want: "sleep"},
	}
}

// healthy keep the GPU busy.
func healthy() []scenario {
	const queued = "kernels 50 gemm_us100; lag"
	return []scenario{
		{name: "queued kernels", script: queued, usual: true},
		{name: "queued kernels, windows", script: queued, windows: true},
		{name: "graphs", script: "graph 100 gemm_us50; lag"},
		{name: "queued kernels and work beside", script: queued + "; native 1000"},
		{name: "Python ahead of the GPU", script: "kernels 30 gemm_us200; lag; python 1500", python: true},
		{name: "two streams", script: queued + "\n" + queued, env: knob("CUDASIM_KERNEL_SLOTS", "2")},
		{name: "two processes", script: queued + "\nprocess " + queued},
		{
			name:   "copies overlapped",
			script: queued + "\nupload 1M; kernels 4 gemm_us500; lag",
			env:    knob("CUDASIM_KERNEL_SLOTS", "2"),
		},
		{name: "helpers that sleep", script: queued + "\nsleep 5000"},
	}
}

// busy keep the GPU busy with kernels that could use it better.
func busy() []scenario {
	memory, small := [][2]string{
		{"gemvx", "bandwidth-bound"},
		{"flash_fwd_splitkv", "bandwidth-bound"},
	}, [][2]string{
		{"small", "small-batch"},
	}
	return []scenario{
		{
			name:    "decoding, bound by memory",
			script:  "kernels 80 gemvx_us50; kernels 20 gemm_us50; lag",
			kernels: memory,
			want:    "bandwidth-bound",
			usual:   true,
		},
		{
			name:    "decoding in graphs",
			script:  "graph 100 flash_fwd_splitkv_us50; lag",
			kernels: memory,
			want:    "bandwidth-bound",
		},
		{
			name:    "small batch",
			script:  "small 80 16 small_us50; kernels 20 gemm_us50; lag",
			kernels: small,
			want:    "small-batch",
			usual:   true,
		},
		{
			name:    "small batch, windows",
			script:  "small 80 16 small_us50; kernels 20 gemm_us50; lag",
			kernels: small,
			want:    "small-batch",
			windows: true,
		},
		{
			name:    "tiny kernels in graphs",
			script:  "graph 600 tiny_ns4900; kernels 22 gemm_us100; lag",
			env:     knob("CUDASIM_GRAPH_NODE_NS", "50"),
			kernels: [][2]string{{"tiny", "tiny-kernels"}},
			want:    "tiny-kernels",
		},
		{
			name:    "memory over small batch",
			script:  "kernels 80 gemvx_us50; small 30 16 small_us50; lag",
			kernels: append(memory, small...),
			want:    "bandwidth-bound",
		},
		{name: "native over memory", script: "kernels 20 gemvx_us50; wait; native 3000", want: "native-work"},
		{
			name:   "some kernels of each kind",
			script: "kernels 80 gemm_us50; kernels 20 gemvx_us50; small 20 16 small_us50; lag",
		},
		{name: "sync after long steps", script: "eager 8 25 gemm_us80; wait", want: "host-sync", left: true},
	}
}

// mixed are causes that hide each other, or that several threads of one interpreter share. They were written, and run
// once, before the analysis was changed for any of them.
func mixed() []scenario {
	const (
		layer = "eager 2 20 gemm_us18; item; "
		short = "eager 6 8 gemm_us4; item; " // launches of 10 µs, for kernels that take less
	)
	return []scenario{
		{
			name:   "handlers under the GIL",
			script: "kernels 20 gemm_us50; gwait; phandlers 1500 1; python 500",
			python: true,
			want:   "gil",
		},
		{
			name:   "two threads that tokenize under the GIL",
			script: "kernels 20 gemm_us50; gwait; pytokenize 3000\nkernels 20 gemm_us50; gwait; pytokenize 3000",
			python: true,
			want:   "preprocessing",
		},
		{name: "a number after each layer", script: strings.Repeat(layer, 12), want: "host-sync"},
		{name: "collections inside pickle", script: step + "unpickle 1000 60000", python: true, want: "gc"},
		{
			name:   "tokenizer in Python, throttled",
			script: step + "pytokenize 2000",
			python: true,
			quota:  30,
			want:   "throttled",
		},
		{
			name:   "graph and allocation",
			script: "graph 40 gemm_us25; wait; alloc 2 1M",
			env:    knob("CUDASIM_ALLOC_NS", "1500000"),
			want:   "allocation",
		},
		{
			name:      "noisy neighbours of Python",
			script:    "cpu {cpu}; " + step + "python 2000",
			python:    true,
			hogs:      2,
			want:      "no-cpu",
			neighbour: true,
		},
		{name: "loader over native", script: step + "loader 11000; pack 3000", want: "worker"},
		{
			name:    "server that is asked at once",
			script:  "serve; tokenize 3000; kernels 20 gemm_us50; wait",
			request: 20 * time.Microsecond,
			want:    "preprocessing",
		},
		{
			name:   "Python over upload",
			script: "copyin 12M; kernels 10 gemm_us50; wait; python 6000",
			python: true,
			want:   "python-work",
			copies: "sync-copy",
		},
		{
			name: "handlers that keep the GPU busy",
			script: strings.TrimSpace(strings.Repeat(
				"kernels 20 gemm_us100; gwait; pytokenize 300\n", 3)),
			python: true,
		},
		{name: "a number after each short layer", script: strings.Repeat(short, 12), want: "host-sync"},
	}
}
