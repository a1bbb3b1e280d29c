package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/report"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// TestRunCountsIterations: nobody's first milliseconds choose what an iteration is, though the driver is probed before
// the runtime: each token of victim.py waits for the GPU once, and all waits that were recorded are iterations, within
// 1%. How many of the 6,400 these are hangs on the machine's load, for the overhead budget may end their recording.
func TestRunCountsIterations(t *testing.T) {
	needs.Long(t)
	r := newRunner(t)
	p := cudasim.Build(t)
	r.env = append(r.env, "LD_LIBRARY_PATH="+p.LibraryPath(cudasim.Shape580))
	f := r.run("--report", "r.json", "--", python(t), p.VictimPython, "--requests", "400", "--tokens", "16")
	f.says(t, 0)
	var m report.Model
	must.NoError(t, json.Unmarshal([]byte(f.report(t, "r.json")), &m))
	it := m.Diagnosis.Iterations
	waits := uint64(0)
	for _, x := range m.Summary.Functions {
		if strings.HasSuffix(x.Name, "StreamSynchronize") {
			waits += x.Count
		}
	}
	if it == nil || waits < 1000 || waits > 6401 || it.Count < waits*99/100 || it.Count > waits {
		t.Errorf("%d waits were recorded, and the iterations are %+v", waits, it)
	}
}

// plain is a program that uses no GPU.
type plain struct {
	name    string
	command []string
}

func plainPrograms(t *testing.T) []plain {
	t.Helper()
	py := python(t)
	list := []plain{
		{"shell loop with sleep", []string{"sh", "-c", "for i in 1 2 3 4 5; do sleep 0.2; done"}},
		{"bash loop", []string{"bash", "-c", "for ((i = 0; i < 200000; i++)); do :; done"}},
		{
			"Python computing",
			[]string{py, "-c", "import time\nt = time.time()\nwhile time.time() - t < 1: sum(range(1000))"},
		},
		{"Python HTTP server", []string{py, "-c", `import http.server, threading, urllib.request
s = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=s.serve_forever, daemon=True).start()
for _ in range(50): urllib.request.urlopen("http://127.0.0.1:%d/" % s.server_port).read()`}},
		{"two threads and a lock", []string{py, "-c", `import threading, time
lock = threading.Lock()
def work():
    for _ in range(20):
        with lock: time.sleep(0.02)
a = threading.Thread(target=work); a.start(); work(); a.join()`}},
		{"disk writer", []string{"sh", "-c", "dd if=/dev/zero of=big bs=1M count=64 conv=fsync 2>/dev/null; rm big"}},
		{"a pipe", []string{"sh", "-c", "yes | head -n 5000000 | wc -l >/dev/null"}},
		{"idle", []string{"sleep", "1"}},
		{"gzip", []string{"sh", "-c", "head -c 30000000 /dev/urandom | gzip >/dev/null"}},
		{"sort", []string{"sh", "-c", "seq 1 400000 | sort -R | sort -n >/dev/null"}},
	}
	if program, ok := goProgram(t); ok {
		list = append(list, plain{"Go program", []string{program}})
	}
	if exec.Command(py, "-c", "import numpy").Run() == nil {
		list = append(
			list,
			plain{
				"NumPy",
				[]string{py, "-c", "import numpy\na = numpy.random.rand(600, 600)\nfor _ in range(40): a = a @ a % 1"},
			},
		)
	}
	return list
}

// goProgram builds a program of goroutines that compute and wait for each other, and reports whether there is a Go
// compiler to build it with.
func goProgram(t *testing.T) (path string, ok bool) {
	t.Helper()
	compiler, err := exec.LookPath("go")
	if err != nil {
		return "", false
	}
	folder := t.TempDir()
	source, path := filepath.Join(folder, "main.go"), filepath.Join(folder, "pipeline")
	text := `package main

import (
	"crypto/sha256"
	"sync"
)

func main() {
	pieces, sums := make(chan []byte), make(chan [32]byte)
	var workers sync.WaitGroup
	for range 2 {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for piece := range pieces {
				sums <- sha256.Sum256(piece)
			}
		}()
	}
	go func() {
		for range 20000 {
			pieces <- make([]byte, 16384)
		}
		close(pieces)
		workers.Wait()
		close(sums)
	}()
	for range sums {
	}
}
`
	must.NoError(t, os.WriteFile(source, []byte(text), 0o600))
	must.Run(t, exec.Command(compiler, "build", "-o", path, source))
	return path, true
}

// TestPrograms without a GPU get no advice about one, and none that is made for training loops. The table of what each
// is told is in docs/examples/no-gpu.md (go test -run TestProgramsWithoutGPU -v ./test/e2e).
func TestProgramsWithoutGPU(t *testing.T) {
	needs.Long(t)
	list := plainPrograms(t)
	for _, p := range list {
		r := newRunner(t)
		f := r.run(append([]string{"--report", "r.json", "--"}, p.command...)...)
		f.says(t, 0)
		var m report.Model
		must.NoError(t, json.Unmarshal([]byte(f.report(t, "r.json")), &m))
		d := &m.Diagnosis
		if d.Verdict != "cpu-only" && d.Verdict != "not-enough-evidence" {
			t.Errorf("%s: %s", p.name, d.Verdict)
		}
		if d.Iterations != nil {
			t.Errorf("%s: iterations %+v", p.name, d.Iterations)
		}
		texts := []string{strings.Replace(d.Headline, "No GPU is used", "", 1)}
		for i := range d.Findings {
			x := &d.Findings[i]
			texts = append(texts, x.Title)
			for _, c := range x.Changes {
				texts = append(texts, c.Text)
			}
			if x.Gain != nil && x.Gain.High > 100 && (x.Cause == "worker" || x.Cause == "sleep") {
				t.Errorf("%s: %s promises %+v", p.name, x.Cause, *x.Gain)
			}
		}
		for _, text := range texts {
			for _, word := range []string{"GPU", "CUDA", "loader", "next batch", "CUDA graph"} {
				if strings.Contains(text, word) {
					t.Errorf("%s: %q speaks of a %s", p.name, text, word)
				}
			}
		}
		t.Logf("| %s | %s | %s |", p.name, d.Verdict, d.Headline)
	}
}
