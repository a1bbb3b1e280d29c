package diagnosis

import (
	"strings"
	"time"
)

// each6 is how often a step is repeated before what happens now and then.
const each6 = 6

// layers is how many layers fetch their weights in a step.
const layers = 6

// blind were written by somebody who had not read the analysis, and run once before it was changed for any of them.
func blind() []scenario {
	six := strings.Repeat(step, each6)
	return []scenario{
		{
			name:   "answers of a thread under the GIL",
			script: "kernels 40 gemm_us50; gwait; panswer 3000 0",
			python: true,
			want:   "worker",
		},
		{
			name:   "a feeder in Python",
			script: "kernels 20 gemm_us50; gwait; pfeed 3000 1",
			python: true,
			want:   "worker",
		},
		{name: "a collection now and then", script: six + "collect 100000", python: true, want: "gc"},
		{name: "native work now and then", script: six + "native 15000", want: "native-work"},
		{name: "polling with sleeps", script: "kernels 20 gemm_us50; poll 2000", want: "sleep"},
		{name: "lock of a file", script: step + "flock 4000", want: "lock"},
		{name: "timer of an event loop", script: step + "aio 3000", python: true, want: "sleep"},
		{
			name:   "own neighbour",
			script: "cpu {cpu}; " + step + "native 1500\nnative 5000",
			want:   "no-cpu",
		},
		{
			name:   "Python over allocation and upload",
			script: step + "alloc 1 1M; python 4000; copyin 4M",
			env:    knob("CUDASIM_ALLOC_NS", "1500000"),
			python: true,
			want:   "python-work",
			copies: "sync-copy",
		},
		{name: "batches pickled by a process", script: step + "precv 3000", python: true, want: "serialization"},
		{name: "results to a slow process", script: step + "feed 4000", want: "worker"},
		{
			name:   "collections beside the GPU",
			script: "kernels 60 gemm_us500; lag; collect 60000",
			python: true,
		},
		{name: "event loop beside the GPU", script: "kernels 30 gemm_us200; lag; aio 1500", python: true},
	}
}

// blindTwins: that more feeders share one interpreter brings nothing.
func blindTwins() map[string]twin {
	six := strings.Repeat(step, each6)
	return map[string]twin{
		"answers of a thread under the GIL": fix("kernels 40 gemm_us50; gwait; panswer 3000 1", "without",
			"worker").workers(1),
		"a feeder in Python":        fix("kernels 20 gemm_us50; gwait; pfeed 3000 4", "without", "worker").workers(4),
		"a collection now and then": fix(six, "without", "gc"),
		"native work now and then":  fix(six+"native 5000", "faster", "native-work=3"),
		"polling with sleeps":       fix(step, "without", "sleep"),
		"lock of a file":            fix(step, "without", "lock"),
		"timer of an event loop":    fix(step, "without", "sleep", "without", "python-work"),
		"own neighbour":             fix(step+"native 1500\nnative 5000", "without", "no-cpu"),
		"Python over allocation and upload": fix(step+"alloc 1 1M; python 1000; copyin 4M", "faster",
			"sample_token=4"),
		"batches pickled by a process": fix(step+"precv 750", "faster", "receive_made=4"),
		"results to a slow process":    fix(step+"feed 1000", "faster", "build_batch=4"),
	}
}

// blindMixed are mixtures of two causes, a server, a quota and a noisy neighbour, written by somebody who had not read
// how the analysis decides them, and run once before it was changed for any of them.
func blindMixed() []scenario {
	return []scenario{
		{
			name:    "server that asks another",
			script:  "serve; tokenize 1000; ask {answer} 3000; kernels 20 gemm_us50; wait",
			request: 20 * time.Microsecond,
			want:    "network",
		},
		{
			name:   "a busy thread beside, throttled",
			script: step + "native 1500\nnative 5000",
			quota:  60,
			want:   "throttled",
		},
		{
			name:      "a noisy neighbour of launches",
			script:    "cpu {cpu}; burst 100 10 tiny_us3; wait",
			env:       asOnGPU(),
			hogs:      1,
			want:      "no-cpu",
			neighbour: true,
		},
		{
			name:   "allocation and download",
			script: step + "alloc 2 1M; copyout 12M",
			env:    knob("CUDASIM_ALLOC_NS", "1500000"),
			want:   "allocation",
			copies: "sync-copy",
		},
		{name: "file and tokenizer", script: step + "read 1M; tokenize 4000", want: "preprocessing"},
		{
			name:   "JSON after an answer of a server",
			script: step + "fetch {http} 2000; json 5000",
			python: true,
			want:   "serialization",
		},
	}
}

func blindMixedTwins() map[string]twin {
	return map[string]twin{
		"server that asks another": fix("serve; tokenize 1000; ask {answer} 1000; kernels 20 gemm_us50; wait",
			"faster", "network=3"),
		"a busy thread beside, throttled": fix(step+"native 1500\nnative 5000", "without", "throttled").quiet(),
		"a noisy neighbour of launches":   fix("cpu {cpu}; burst 100 10 tiny_us3; wait", "without", "no-cpu").quiet(),
		"allocation and download":         fix(step+"copyout 12M", "without", "allocation"),
		"file and tokenizer":              fix(step+"read 1M; tokenize 1000", "faster", "tokenize*=4"),
		"JSON after an answer of a server": fix(step+"fetch {http} 2000; json 1250", "faster",
			"serialization=4", "faster", "gc=4", "faster", "python-work=4"),
	}
}

// blindThreads are servers, threads and mixtures of two causes, written by somebody who knew parts of the analysis, and
// run once before it was changed for any of them.
func blindThreads() []scenario {
	return []scenario{
		{
			name:    "JSON in an HTTP server",
			script:  "handle; json 4000; kernels 20 gemm_us50; wait",
			python:  true,
			http:    true,
			request: 20 * time.Microsecond,
			want:    "serialization",
		},
		{name: "two threads on fresh memory", script: step + "fault 8M\n" + step + "fault 8M", want: "page-faults"},
		{name: "mutex and upload", script: step + "lock 4000; copyin 8M", want: "lock", copies: "sync-copy"},
		{
			name:   "modules and sleep",
			script: step + "module; sleep 1500",
			env:    knob("CUDASIM_SLOW", "cuModuleLoadData:*:3000000"),
			want:   "compilation",
		},
		{
			name:   "Python and pickle, throttled",
			script: step + "python 1500; pickle 1500",
			python: true,
			quota:  40,
			want:   "throttled",
		},
		{
			name:   "two threads that ask a server",
			script: step + "ask {answer} 3000\n" + step + "ask {answer} 3000",
			want:   "network",
		},
	}
}

func blindThreadsTwins() map[string]twin {
	return map[string]twin{
		"JSON in an HTTP server": fix("handle; json 1000; kernels 20 gemm_us50; wait", "faster",
			"serialization=4", "faster", "gc=4", "faster", "python-work=4"),
		"two threads on fresh memory":  fix(step+"reuse 8M\n"+step+"reuse 8M", "without", "page-faults"),
		"mutex and upload":             fix(step+"lock 1000; copyin 8M", "faster", "build_batch=4"),
		"modules and sleep":            fix(step+"sleep 1500", "without", "compilation"),
		"Python and pickle, throttled": fix(step+"python 1500; pickle 1500", "without", "throttled").quiet(),
		"two threads that ask a server": fix(step+"ask {answer} 1000\n"+step+"ask {answer} 1000", "faster",
			"network=3"),
	}
}

// blindServers are servers, processes, threads under one lock, a quota, noisy neighbours and graphs with allocation,
// written by somebody who had read the programs before them and none of the analysis, and run once before it was
// changed for any of them.
func blindServers() []scenario {
	pickles := "kernels 20 gemm_us50; gwait; pickle 3000"
	return []scenario{
		{
			name:   "graph and pinning",
			script: "graph 60 gemm_us25; wait; pin 1 16M; native 800",
			env:    knob("CUDASIM_SLOW", "cuMemHostAlloc:*:3000000"),
			want:   "allocation",
		},
		{
			name:   "graph, allocation and Python",
			script: "graph 40 gemm_us25; wait; ralloc 2 1M; python 1200",
			env:    knob("CUDASIM_ALLOC_NS", "1500000"),
			python: true,
			want:   "allocation",
		},
		{
			name:    "CSV in an HTTP server",
			script:  "handle; csv 4000; kernels 20 gemm_us50; wait",
			python:  true,
			http:    true,
			request: 20 * time.Microsecond,
			want:    "preprocessing",
		},
		{
			name:    "server that waits for a lock",
			script:  "serve; lock 3500; kernels 20 gemm_us50; wait",
			request: 20 * time.Microsecond,
			want:    "lock",
		},
		{
			name:   "two processes that decode and sleep",
			script: step + "decode 4000; sleep 800\nprocess " + step + "decode 4000; sleep 800",
			want:   "preprocessing",
		},
		{
			name:   "launches, throttled",
			script: "burst 100 20 tiny_us3; wait",
			env:    asOnGPU(),
			quota:  40,
			want:   "throttled",
		},
		{
			name:      "noisy neighbours of a tokenizer and an upload",
			script:    "cpu {cpu}; " + step + "tokenize 2500; copyin 4M",
			hogs:      2,
			want:      "no-cpu",
			copies:    "sync-copy",
			neighbour: true,
		},
		{
			name:   "answer of a server, and collections",
			script: step + "fetch {http} 5000; collect 10000",
			python: true,
			want:   "network",
		},
		{
			name:   "three threads that pickle under the GIL",
			script: strings.Join([]string{pickles, pickles, pickles}, "\n"),
			python: true,
			want:   "serialization",
		},
		{name: "worker and sleep", script: step + "worker 4000; sleep 1200", want: "worker"},
		{
			name:    "server beside graphs",
			script:  "graph 100 gemm_us50; lag\nserve; tokenize 500",
			request: 2 * time.Millisecond,
		},
		{name: "JSON and sleep beside the GPU", script: "kernels 40 gemm_us200; lag; json 2000; psleep 1000", python: true},
	}
}

func blindServersTwins() map[string]twin {
	pickles := "kernels 20 gemm_us50; gwait; pickle 1000"
	decodes := step + "decode 1000; sleep 800"
	return map[string]twin{
		"graph and pinning":            fix("graph 60 gemm_us25; wait; native 800", "without", "allocation"),
		"graph, allocation and Python": fix("graph 40 gemm_us25; wait; python 1200", "without", "allocation"),
		"CSV in an HTTP server": fix("handle; csv 1000; kernels 20 gemm_us50; wait", "faster",
			"preprocessing=4", "faster", "gc=4", "faster", "python-work=4"),
		"server that waits for a lock": fix("serve; lock 875; kernels 20 gemm_us50; wait", "faster",
			"build_batch=4"),
		"two processes that decode and sleep": fix(decodes+"\nprocess "+decodes, "faster", "preprocessing=4"),
		"launches, throttled":                 fix("burst 100 20 tiny_us3; wait", "without", "throttled").quiet(),
		"noisy neighbours of a tokenizer and an upload": fix("cpu {cpu}; "+step+"tokenize 2500; copyin 4M",
			"without", "no-cpu").quiet(),
		"answer of a server, and collections": fix(step+"fetch {http} 1000; collect 10000", "faster", "network=5"),
		"three threads that pickle under the GIL": fix(
			strings.Join([]string{pickles, pickles, pickles}, "\n"), "faster", "serialization=3",
		),
		"worker and sleep": fix(step+"worker 1000; sleep 1200", "faster", "build_batch=4"),
	}
}

// blindOversights are what servers and decoding loops do by oversight, written by somebody who had read the programs
// before them and none of the analysis, and run once before it was changed for any of them. The truth was mended after
// that: what a thread had no CPU for before a collection was not counted.
func blindOversights() []scenario {
	return []scenario{
		{
			name:   "download and tokenizer",
			script: step + "copyout 32M; tokenize 1000",
			want:   "sync-copy",
			copies: "sync-copy",
		},
		{
			name:   "launches and sleep",
			script: "burst 150 20 tiny_us3; wait; sleep 1000",
			env:    asOnGPU(),
			want:   "launch-overhead",
		},
		{
			name:    "modules in a server",
			script:  "serve; module; kernels 20 gemm_us50; wait",
			env:     knob("CUDASIM_SLOW", "cuModuleLoadData:*:4000000"),
			request: 20 * time.Microsecond,
			want:    "compilation",
		},
		{
			name:   "collections and a lock in Python",
			script: step + "plock 1500; collect 10000",
			python: true,
			want:   "gc",
		},
		{
			name:    "queue in an HTTP server",
			script:  "handle; pqueue 5000; kernels 20 gemm_us50; wait",
			python:  true,
			http:    true,
			request: 20 * time.Microsecond,
			want:    "worker",
		},
		{
			name:   "two processes that wait for a writer",
			script: step + "rwlock 4000\nprocess " + step + "rwlock 4000",
			want:   "lock",
		},
		{
			name:    "regular expressions in an HTTP server, throttled",
			script:  "handle; regex 2000; kernels 20 gemm_us50; wait",
			python:  true,
			http:    true,
			request: 20 * time.Microsecond,
			quota:   40,
			want:    "throttled",
		},
		{name: "worker beside graphs", script: "graph 100 gemm_us50; lag; worker 1500"},
	}
}

func blindOversightsTwins() map[string]twin {
	return map[string]twin{
		"download and tokenizer":           fix("ahead 32M 1; "+step+"tokenize 1000", "without", "sync-copy"),
		"launches and sleep":               fix("graph 150 tiny_us3; wait; sleep 1000", "without", "launches"),
		"modules in a server":              fix("serve; kernels 20 gemm_us50; wait", "without", "compilation"),
		"collections and a lock in Python": fix(step+"plock 1500", "without", "gc"),
		"queue in an HTTP server": fix("handle; pqueue 2500; kernels 20 gemm_us50; wait", "faster",
			"compress=2"),
		"two processes that wait for a writer": fix(step+"rwlock 1000\nprocess "+step+"rwlock 1000", "faster",
			"build_batch=4"),
		"regular expressions in an HTTP server, throttled": fix(
			"handle; regex 2000; kernels 20 gemm_us50; wait", "without", "throttled",
		).quiet(),
	}
}

// blindPlatforms are what a platform adds around its models, written by somebody who had read the programs before them
// and none of the analysis, and checked without a daemon only.
func blindPlatforms() []scenario {
	return []scenario{
		{name: "checkpoint over a tokenizer", script: step + "sync 4M; tokenize 1000", want: "disk"},
		{
			name:    "worker process in an HTTP server",
			script:  "handle; child 4000; kernels 20 gemm_us50; wait",
			python:  true,
			http:    true,
			request: 20 * time.Microsecond,
			want:    "worker",
		},
		{
			name:    "image decoding in a server that asks another",
			script:  "serve; decode 4000; ask {answer} 1200; kernels 20 gemm_us50; wait",
			request: 20 * time.Microsecond,
			want:    "preprocessing",
		},
		{
			name:    "imports in an HTTP server",
			script:  "handle; import; kernels 20 gemm_us50; wait",
			python:  true,
			http:    true,
			request: 20 * time.Microsecond,
			want:    "compilation",
		},
		{
			name:   "weights before each layer",
			script: strings.Repeat("copyin 4M; kernels 5 gemm_us50; wait; ", layers),
			want:   "sync-copy",
			copies: "sync-copy",
		},
		{name: "fresh memory in Python", script: step + "fault 16M; python 800", python: true, want: "page-faults"},
		{
			name:   "launches and allocation",
			script: "burst 150 20 tiny_us3; wait; ralloc 1 1M",
			env:    append(asOnGPU(), "CUDASIM_ALLOC_NS=1000000"),
			want:   "launch-overhead",
		},
		{
			name:      "noisy neighbours of a server",
			script:    "cpu {cpu}; serve; decode 2000; kernels 20 gemm_us50; wait",
			request:   20 * time.Microsecond,
			hogs:      2,
			want:      "no-cpu",
			neighbour: true,
		},
	}
}

func blindPlatformsTwins() map[string]twin {
	return map[string]twin{
		"checkpoint over a tokenizer": fix(step+"tokenize 1000", "faster", "disk=1000000", "without",
			"save_results"),
		"worker process in an HTTP server": fix("handle; child 1000; kernels 20 gemm_us50; wait", "faster",
			"build_batch=4"),
		"image decoding in a server that asks another": fix(
			"serve; decode 1000; ask {answer} 1200; kernels 20 gemm_us50; wait", "faster", "decode_jpeg=4",
		),
		"imports in an HTTP server": fix("handle; kernels 20 gemm_us50; wait", "without", "compilation"),
		"weights before each layer": fix(strings.Repeat("ahead 4M; kernels 5 gemm_us50; wait; ", layers), "without",
			"sync-copy"),
		"fresh memory in Python":  fix(step+"reuse 16M; python 800", "without", "page-faults"),
		"launches and allocation": fix("graph 150 tiny_us3; wait; ralloc 1 1M", "without", "launches"),
		"noisy neighbours of a server": fix("cpu {cpu}; serve; decode 2000; kernels 20 gemm_us50; wait", "without",
			"no-cpu").quiet(),
	}
}
