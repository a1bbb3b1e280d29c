package diagnosis

import (
	"errors"
	"maps"

	"github.com/inferscope/inferscope/internal/analysis/whatif"
)

// twin is a scenario with its cause fixed, and the change that was predicted.
type twin struct {
	script string // of the fixed program
	calm   bool   // nobody takes its CPUs
	worth  int    // see scenario
	edits  []whatif.Edit
	bad    error // some edit cannot be read
}

// fix makes edits of what a user types: verb and what follows it, in turns. TestTwins finds
// those that cannot be read.
func fix(script string, words ...string) twin {
	t := twin{script: script}
	for i := 0; i+1 < len(words); i += 2 {
		e, err := whatif.Parse(whatif.Verb(words[i]), words[i+1])
		t.edits, t.bad = append(t.edits, e), errors.Join(t.bad, err)
	}
	return t
}

// workers returns how many helpers share the work.
func (t twin) workers(n int) twin {
	t.edits[0].Workers = n
	return t
}

func (t twin) quiet() twin {
	t.calm = true
	return t
}

// fixed returns the scenario that the twin is.
func (t *twin) fixed(s *scenario) scenario {
	f := *s
	f.script, f.want, f.worth = t.script, "", t.worth // it may have nothing to write down
	if t.calm {
		f.hogs, f.quota = 0, 0
	}
	return f
}

// twins are the fixed programs of all scenarios that have a fix, by name. What nobody offers (an idle server), what is
// healthy, and what waits for the GPU's own work (dependencies) has none.
func twins() map[string]twin {
	all := map[string]twin{}
	for _, group := range []map[string]twin{
		cpuTwins(), deviceTwins(), waitingTwins(), pythonTwins(), pairTwins(), mixedTwins(), blindTwins(),
		blindMixedTwins(), blindThreadsTwins(), blindServersTwins(), blindOversightsTwins(),
		blindPlatformsTwins(), rowsTwins(), operatorsTwins(), habitsTwins(),
	} {
		maps.Copy(all, group)
	}
	return all
}

func cpuTwins() map[string]twin {
	return map[string]twin{
		"native work": fix(step+"native 1000", "faster", "native-work=3"),
		"native work, unlike kernels": fix("kernels 3 attn_us400; kernels 40 gemm_us10; pack 4000; wait",
			"without", "native-work"),
		"native work, windows":   fix(step+"native 1500", "faster", "build_batch=2"),
		"tokenizer":              fix("kernels 20 gemm_us50; tokenize 3000; wait", "overlap", "tokenize*"),
		"image decoding":         fix(step+"decode 2500; resize 300", "faster", "resize_bilinear=5"),
		"native over memory":     fix("kernels 20 gemvx_us50; wait; native 1000", "faster", "native-work=3"),
		"two threads in step":    fix(step+"native 2000\n"+step+"native 2000", "faster", "native-work=2"),
		"two threads that sleep": fix(step+"sleep 3000\n"+step+"sleep 3000", "faster", "sleep=2"),
		"two processes that tokenize": fix(step+"tokenize 3000\nprocess "+step+"tokenize 3000", "faster",
			"preprocessing=2"),
		"two processes that wait": fix(step+"sleep 3000\nprocess "+step+"sleep 3000", "faster", "sleep=2"),
	}
}

func deviceTwins() map[string]twin {
	return map[string]twin{
		"launches, dispatched":          fix("graph 100 tiny_us3; wait", "without", "launches"),
		"launches, runtime":             fix("graph 100 tiny_us2; wait", "without", "launches"),
		"launches, slow driver":         fix("graph 100 tiny_us2; wait", "without", "launches"),
		"sync at each step":             fix("kernels 2 gemm_us40; lag", "without", "sync"),
		"sync after long steps":         fix("kernels 2 gemm_us80; lag", "without", "sync"),
		"sync at each step, runtime":    fix("rkernels 2 0 gemm_us40; lag", "without", "sync"),
		"a number fetched at each step": fix("kernels 2 gemm_us40; lag", "without", "sync"),
		"synchronous upload":            fix("ahead 24M; kernels 10 gemm_us50; wait", "without", "sync-copy"),
		"synchronous download":          fix("ahead 24M 1; kernels 10 gemm_us50; wait", "without", "sync-copy"),
		"upload not overlapped":         fix("ahead 48M; kernels 40 gemm_us100; lag", "without", "copy-not-overlapped"),
		"copies beyond all": fix("ahead 96M; ahead 64M 1; kernels 10 gemm_us100; lag", "without",
			"copy-bound"),
		"allocation":          fix(step, "without", "allocation"),
		"allocation, runtime": fix(step+"ralloc 1 1M", "faster", "allocation=2"),
		"pinning":             fix(step, "without", "allocation"),
		"module loading":      fix(step, "without", "compilation"),
		"fresh memory":        fix(step+"reuse 16M", "without", "page-faults"),
	}
}

func waitingTwins() map[string]twin {
	return map[string]twin{
		"worker thread":              fix(step+"loader 3000", "without", "worker").workers(1),
		"loader thread, queue":       fix(step+"loader 2500", "without", "worker").workers(2),
		"worker process, pipe":       fix(step+"child 1000", "faster", "build_batch=3"),
		"tokenizing process, socket": fix(step+"frontend 1500", "faster", "tokenize*=2"),
		"mutex":                      fix(step+"lock 1000", "faster", "build_batch=4"),
		"read-write lock":            fix(step+"rwlock 2000", "faster", "build_batch=2"),
		"contended mutex": fix(
			step,
			"without",
			"lock",
			"without",
			"build_batch",
		), // who held it is gone, and its CPU is free
		"sleep": fix(step, "without", "sleep"),
		"reading a file": fix(
			step+"read 2M",
			"faster",
			"disk=4",
			"faster",
			"load_weights=4",
		), // fewer bytes take less CPU, too
		"writing a file through": fix(step, "faster", "disk=1000000", "without", "save_results"),
		"answer of a server":     fix(step+"ask {answer} 1000", "faster", "network=5"),
		"no CPU":                 fix("cpu {cpu}; "+step+"native 2000", "without", "no-cpu").quiet(),
		"throttled":              fix(step+"native 3000", "without", "throttled").quiet(),
	}
}

// pythonTwins: who parses a quarter of the documents also frees and collects a quarter of the objects; the programs
// call that Python work and garbage collection (working in prog.py).
func pythonTwins() map[string]twin {
	return map[string]twin{
		"Python sampling":     fix(step+"python 1000", "faster", "sample_token=4"),
		"Python beam search":  fix(step+"beams 2000", "faster", "python-work=2"),
		"Python, windows":     fix(step+"python 2000", "faster", "python=2"),
		"tokenizer in Python": fix(step+"pytokenize 1000", "faster", "tokenize*=4"),
		"JSON": fix(step+"json 1000", "faster", "serialization=4",
			"faster", "gc=4", "faster", "python-work=4"),
		"CSV": fix(step+"csv 2000", "faster", "preprocessing=2", "faster", "gc=2", "faster", "python-work=2"),
		"regular expressions": fix(step+"regex 1000", "faster", "preprocessing=4",
			"faster", "gc=4", "faster", "python-work=4"),
		"pickle":             fix(step+"pickle 1000", "faster", "serialization=4"),
		"garbage collection": fix(step, "without", "gc"),
		"GIL": fix(
			step,
			"without",
			"gil",
			"without",
			"log_metrics",
		), // the CPU that it used is free, too
		"lock in Python":           fix(step+"plock 2000", "faster", "compress=2"),
		"queue in Python":          fix(step+"pqueue 2000", "faster", "compress=2"),
		"loader process in Python": fix(step+"pchild 2000", "faster", "count_beams=2"),
		"imports":                  fix(step, "without", "compilation"),
		"sleep in Python":          fix(step, "without", "sleep"),
		"answer over HTTP":         fix(step+"fetch {http} 2000", "faster", "network=3"),
		"no GPU at all":            fix("nocuda; python 2500; psleep 1000", "faster", "sample_token=2"),
	}
}

func pairTwins() map[string]twin {
	return map[string]twin{
		"tokenizer over sleep": fix(step+"tokenize 1000", "faster", "tokenize_batch=4", "without", "sleep"),
		"sleep over tokenizer": fix(step+"tokenize 1500", "without", "sleep"),
		"native over answer": fix(step+"native 3000; ask {answer} 1000", "faster", "native-work=2", "faster",
			"network=2"),
		"answer over native":     fix(step+"native 2000; ask {answer} 2000", "faster", "network=3"),
		"worker over native":     fix(step+"loader 5000; native 1500", "without", "worker").workers(1),
		"mutex over allocation":  fix(step+"lock 5000", "without", "allocation"),
		"allocation over native": fix(step+"native 1500", "without", "allocation"),
		"Python over pickle":     fix(step+"python 1000; pickle 2000", "faster", "sample_token=5"),
		"pickle over Python":     fix(step+"python 2000", "faster", "serialization=1000000"),
		"JSON over sleep": fix(step+"json 2500", "faster", "serialization=2", "faster", "gc=2", "faster",
			"python-work=2", "without", "sleep"),
		"process over tokenizer":  fix(step+"child 2500; tokenize 1500", "faster", "build_batch=2"),
		"sampling over tokenizer": fix(step+"pytokenize 500; python 5000", "faster", "tokenize=4"),
		"launches over native":    fix("graph 200 tiny_us3; wait; native 1500", "without", "launches"),
	}
}

func mixedTwins() map[string]twin {
	return map[string]twin{
		"handlers under the GIL": fix("kernels 20 gemm_us50; gwait; phandlers 1500 4; python 500", "without",
			"worker").workers(4),
		"two threads that tokenize under the GIL": fix(
			"kernels 20 gemm_us50; gwait; pytokenize 1000\nkernels 20 gemm_us50; gwait; pytokenize 1000",
			"faster",
			"tokenize*=3",
		),
		"a number after each layer":       fix("eager 24 20 gemm_us18; item", "without", "sync"),
		"a number after each short layer": fix("eager 72 8 gemm_us4; item", "without", "sync"),
		"collections inside pickle":       fix(step+"unpickle 1000 0", "without", "gc"),
		"tokenizer in Python, throttled":  fix(step+"pytokenize 2000", "without", "throttled").quiet(),
		"graph and allocation":            fix("graph 40 gemm_us25; wait", "without", "allocation"),
		"noisy neighbours of Python":      fix("cpu {cpu}; "+step+"python 2000", "without", "no-cpu").quiet(),
		"loader over native":              fix(step+"loader 2000; pack 3000", "faster", "build_batch=5.5"),
		"server that is asked at once": fix("serve; tokenize 1000; kernels 20 gemm_us50; wait", "faster",
			"tokenize*=3"),
		"Python over upload": fix("copyin 12M; kernels 10 gemm_us50; wait; python 2000", "faster", "sample_token=3"),
	}
}

// twinOf returns the twin of a scenario, and whether it has one.
func twinOf(s *scenario) (twin, bool) {
	t, ok := twins()[s.name]
	return t, ok
}
