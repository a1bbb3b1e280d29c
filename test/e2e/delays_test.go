package e2e

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/analysis"
	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/requests"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// client asks a server of completions for something, again and again.
type client struct {
	requests, tokens, words int
	pause                   time.Duration // between requests
	slow                    time.Duration // between reads of 4 KiB; 0: as fast as it can
	leaves                  int           // so often it leaves each answer after a few tokens, and asks again
}

// plantedServer is a server with something wrong, told before anything looked for it.
type plantedServer struct {
	name     string
	settings string // of testdata/engineserver/llm.py
	clients  []client
	want     string // key of the first cause; "": none
	place    string // in which code; "": it does not matter
	script   string // in testdata/engineserver; "": llm.py
	wheel    string // of SGLang; "": none
}

// plantedServers are 8 that are well and 33 that are not.
func plantedServers() []plantedServer {
	usual := client{requests: 8, tokens: 60, words: 100}
	many := func(n int, c client) []client {
		out := make([]client, n)
		for i := range out {
			out[i] = c
		}
		return out
	}
	return []plantedServer{
		{name: "well", settings: `{}`, clients: many(4, usual)},
		{name: "well, one client", settings: `{}`, clients: many(1, usual)},
		{name: "well, as many clients as slots", settings: `{"slots": 12}`, clients: many(12, usual)},
		{name: "well, of SGLang", script: "sglang_llm.py", settings: `{}`, clients: many(4, usual)},
		{name: "few slots", settings: `{"slots": 2}`, clients: many(8, usual), want: "queueing"},
		{
			name: "few slots, of SGLang", script: "sglang_llm.py", settings: `{"slots": 2}`, clients: many(8, usual),
			want: "queueing",
		},
		{
			name: "one slot, long answers", settings: `{"slots": 1}`, want: "queueing",
			clients: many(3, client{requests: 3, tokens: 150, words: 50}),
		},
		{name: "few let through to the engine", settings: `{"admit": 2}`, clients: many(8, usual), want: "low-batch"},
		{
			name: "one let through at a time, long answers", settings: `{"admit": 1}`, want: "low-batch",
			clients: many(3, client{requests: 3, tokens: 150, words: 50}),
		},
		{
			name: "few let through to the engine, of SGLang", script: "sglang_llm.py", settings: `{"admit": 3}`,
			clients: many(9, usual), want: "low-batch",
		},
		{name: "well, a limit that is not reached", settings: `{"admit": 12}`, clients: many(8, usual)},
		{name: "well, large batches and few clients", settings: `{"slots": 64}`, clients: many(2, usual)},
		{
			name: "few let through, to an engine with fewer slots", settings: `{"admit": 6, "slots": 2}`,
			clients: many(6, usual), want: "queueing",
		},
		{
			name: "few let through, and fewer slots than these", settings: `{"admit": 4, "slots": 2}`,
			clients: many(8, usual), want: "queueing",
		},
		{
			name: "each waits for something else, without a limit", settings: `{"await_ms": 80}`, clients: many(6, usual),
			want: "api-server",
		},
		{
			name: "each waits for something else, beside a long answer", settings: `{"await_ms": 100}`, want: "api-server",
			clients: append(many(3, client{requests: 20, tokens: 2, words: 10}),
				client{requests: 1, tokens: 800, words: 10}),
		},
		{
			name: "small KV cache", settings: `{"slots": 16, "blocks": 44}`, want: "kv-cache",
			clients: many(8, client{requests: 6, tokens: 100, words: 100}),
		},
		{
			name: "KV cache too small for long answers", settings: `{"blocks": 90}`, want: "preemption",
			clients: many(8, client{requests: 1, tokens: 400, words: 10}),
		},
		{
			name: "KV cache too small for long answers, slow prefill", settings: `{"blocks": 60, "prefill_ms": 40, "slots": 4}`,
			clients: many(4, client{requests: 1, tokens: 400, words: 20}), want: "preemption",
		},
		{
			name: "slow tokenizer", settings: `{"tokenize_ms": 60}`, clients: many(4, usual),
			want: "api-server", place: "tokenize",
		},
		{
			name: "slow tokenizer, long prompts", settings: `{"tokenize_ms": 8, "prefill_ms": 0.1}`,
			clients: many(3, client{requests: 6, tokens: 40, words: 1500}), want: "api-server", place: "tokenize",
		},
		{
			name: "slow detokenizer", settings: `{"detokenize_ms": 3}`, want: "api-server", place: "detokenize",
			clients: many(4, client{requests: 4, tokens: 60, words: 100}),
		},
		{
			name: "slow detokenizer, of SGLang", script: "sglang_llm.py", settings: `{"detokenize_ms": 3}`,
			clients: many(4, client{requests: 4, tokens: 60, words: 100}), want: "detokenizer",
		},
		{
			name: "blocked event loop", settings: `{"audit_ms": 130}`, clients: many(4, usual),
			want: "api-server", place: "audit",
		},
		{
			name: "long prefills", settings: `{"prefill_ms": 3}`, want: "prefill-blocks-decode",
			clients: append(many(4, client{requests: 4, tokens: 150, words: 50}),
				client{requests: 12, tokens: 2, words: 4000, pause: 60 * time.Millisecond}),
		},
		{
			name: "long prefills, many", settings: `{"prefill_ms": 2, "slots": 16}`, want: "prefill-blocks-decode",
			clients: append(
				many(6, client{requests: 3, tokens: 150, words: 50}),
				many(2, client{requests: 10, tokens: 2, words: 3000, pause: 80 * time.Millisecond})...),
		},
		{
			name: "slow reader", settings: `{"token_bytes": 60000}`, want: "slow-client", // more than sockets hold
			clients: append(many(2, client{requests: 6, tokens: 100, words: 50}),
				client{requests: 3, tokens: 100, words: 50, slow: time.Millisecond}),
		},
		{
			name: "a call in the event loop that blocks", settings: `{"block_ms": 40}`, clients: many(6, usual),
			want: "api-server",
		},
		{
			name: "one thread tokenizes", settings: `{"tokenize_ms": 50, "pool": 1}`, clients: many(6, usual),
			want: "api-server", place: "tokenize",
		},
		{
			name: "a thread of the API server computes all the time", settings: `{"survey": 1}`, clients: many(4, usual),
			want: "api-server", place: "survey",
		},
		{
			name: "tokens held back until there are 30", settings: `{"merge": 30}`, clients: many(4, usual),
			want: "api-server",
		},
		{
			name: "bursts of many short requests", settings: `{"slots": 4}`, want: "queueing",
			clients: many(24, client{requests: 4, tokens: 12, words: 20, pause: 300 * time.Millisecond}),
		},
		{
			name: "well, bursts for which there is room", settings: `{"slots": 32}`,
			clients: many(8, client{requests: 8, tokens: 40, words: 20, pause: 300 * time.Millisecond}),
		},
		{
			name: "a log of much JSON", settings: `{"log_kb": 80}`, want: "api-server", place: "log",
			clients: many(4, client{requests: 4, tokens: 60, words: 100}),
		},
		{
			name: "a lock of all requests in the API server", settings: `{"lock_ms": 60}`, clients: many(6, usual),
			want: "api-server",
		},
		{
			name: "one huge prompt among small ones", settings: `{"prefill_ms": 2}`, want: "prefill-blocks-decode",
			clients: append(many(4, client{requests: 4, tokens: 60, words: 20}),
				client{requests: 1, tokens: 2, words: 40000}),
		},
		{
			name: "clients that leave and ask again", settings: `{"slots": 4}`, want: "queueing",
			clients: many(6, client{requests: 3, tokens: 150, words: 20, leaves: 2}),
		},
		{
			name: "one at a time until the first token", settings: `{"alone": 1, "slots": 32}`, want: "api-server",
			clients: many(24, client{requests: 8, tokens: 10, words: 100}),
		},
		{
			name: "every fourth waits for a name server", settings: `{"resolve_ms": 400}`, clients: many(6, usual),
			want: "api-server",
		},
		{
			name: "a burst of 64 after a pause", settings: `{"slots": 16}`, want: "queueing",
			clients: many(64, client{requests: 2, tokens: 20, words: 20, pause: 2 * time.Second}),
		},
	}
}

// ask does what a client does.
func (c *client) ask(port string) error {
	dialer := net.Dialer{Control: c.narrow}
	transport := &http.Transport{DialContext: dialer.DialContext, ReadBufferSize: 4096}
	defer transport.CloseIdleConnections()
	asker := http.Client{Transport: transport}
	body := fmt.Sprintf(`{"stream": true, "max_tokens": %d, "prompt": %q}`, c.tokens, strings.Repeat("w ", c.words))
	for i := range c.requests * (1 + c.leaves) {
		resp, err := asker.Post("http://127.0.0.1:"+port+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			return err
		}
		if i%(1+c.leaves) < c.leaves {
			_, err = io.ReadFull(resp.Body, make([]byte, 512))
			_ = resp.Body.Close()
			if err != nil {
				return err
			}
			continue
		}
		for part := make([]byte, 4096); err == nil; {
			_, err = io.ReadFull(resp.Body, part)
			time.Sleep(c.slow)
		}
		_ = resp.Body.Close()
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		time.Sleep(c.pause)
	}
	return nil
}

// narrow keeps what a slow client has not read out of its own kernel, so that the server has to wait.
func (c *client) narrow(_, _ string, conn syscall.RawConn) error {
	if c.slow == 0 {
		return nil
	}
	var err error
	outer := conn.Control(
		func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 1<<16) },
	)
	return errors.Join(err, outer)
}

// record runs a server and its clients under a daemon.
func (p *plantedServer) record(t *testing.T) *recording.Recording {
	t.Helper()
	args := []string{p.settings}
	if p.wheel != "" {
		args = append(args, p.wheel)
	}
	pid, port := pythonServer(t, "../../testdata/engineserver/"+cmp.Or(p.script, "llm.py"), args...)
	d := startDaemon(t, pid, "--gpu", "off", "--overhead-budget", "0")
	var wait sync.WaitGroup
	errs := make(chan error, len(p.clients))
	for i := range p.clients {
		wait.Go(func() { errs <- p.clients[i].ask(port) })
	}
	wait.Wait()
	close(errs)
	for err := range errs {
		must.NoError(t, err)
	}
	rec := d.recording(pid)
	d.stop()
	return rec
}

var serversFile = flag.String("servers", "", "TestDelays writes what it finds to this file, as a table in Markdown")

// TestDelays: of each server what holds its requests up is named first, with its place, and nothing of one that is
// well.
func TestDelays(t *testing.T) {
	needs.Long(t)
	needs.Root(t, "it loads BPF programs and attaches probes")
	table := &serverTable{}
	for _, p := range plantedServers() {
		t.Run(p.name, func(t *testing.T) {
			r := analysis.Run(p.record(t)).Requests
			if r == nil || r.Engine == nil || r.Engine.Matched == 0 {
				t.Fatalf("neither requests nor an engine: %+v", r)
			}
			var first requests.Delay
			for _, d := range r.Delays {
				if d.Cause != cause.APIServerStarved { // true of any server on a machine where others work
					first = d
					break
				}
			}
			right := first.Cause == p.want && strings.Contains(first.Place, p.place)
			table.add(&p, &first, right)
			if !right {
				text, _ := json.MarshalIndent(r.Delays, "", " ")
				engine, _ := json.Marshal(r.Engine)
				t.Errorf("%q in %q, want %q in %q\n%s\n%s", first.Cause, first.Place, p.want, p.place, text, engine)
			}
		})
	}
	if *serversFile != "" {
		if all := len(plantedServers()); len(table.rows) != all {
			t.Fatalf("%d of %d servers could be judged: no table is written", len(table.rows), all)
		}
		must.NoError(t, os.WriteFile(*serversFile, []byte(table.String()), 0o644))
	}
}

// serverTable says of each planted server what was found.
type serverTable struct {
	rows                        []string
	planted, named, well, quiet int
}

func (t *serverTable) add(p *plantedServer, first *requests.Delay, right bool) {
	describe := func(key, place string) string {
		if key == "" {
			return "nothing"
		}
		if place == "" {
			return "`" + key + "`"
		}
		return "`" + key + "` in `" + place + "`"
	}
	share, verdict := "", "**no**"
	if first.Cause != "" {
		share = fmt.Sprintf("%.0f%%", 100*first.Share)
	}
	of, correct := &t.planted, &t.named
	if p.want == "" {
		of, correct = &t.well, &t.quiet
	}
	*of++
	if right {
		*correct++
		verdict = "yes"
	}
	t.rows = append(t.rows, fmt.Sprintf("| %s | %s | %s | %s | %s |\n", p.name, describe(p.want, p.place),
		describe(first.Cause, first.Place), share, verdict))
}

func (t *serverTable) String() string {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		load = []byte("?")
	}
	average, _, _ := strings.Cut(string(load), " ")
	return fmt.Sprintf(`# What holds up the requests of servers

    sudo go test ./test/e2e -run TestDelays -servers "$PWD/docs/examples/servers.md"

Servers of completions with an engine that talks as vLLM's or SGLang's does and sleeps for its steps
(`+"`testdata/engineserver`"+`), each with one thing planted. Right: the cause that was planted is the first that the
report names, in the code where it was planted if it has one; of a server that is well, it names none.
`+"`api-server-starved`"+` does not count: on a machine where others work it is true of any server.
The last 14 were planted before anything looked for them. Of six, a server with bursts that is well was said to be
held up by prefills at first, and a thread that computes all the time was not found where the machine was overloaded.
Of the last eight, one huge prompt was not found at first: an engine that did nothing before had no step to compare it
with. One at a time until the first token was planted wrong: its prefills of 30 ms held others up for longer, and were
named; it has shorter ones and more clients now. A well one, a burst of 64 for which there is room, was taken out: on an
idle machine one thread of its API server truly is a fifth of the time to the first token. On an overloaded machine the
slow tokenizers, the blocked event loop and the slow reader are missed at times.

The cause was named first in **%d of %d** servers, and nothing was found wrong with **%d of %d** that are well
(%d CPUs, load average %s at the end).

| server | planted | named first | of the requests' time | right |
|---|---|---|--:|---|
%s`, t.named, t.planted, t.quiet, t.well, runtime.NumCPU(), average, strings.Join(t.rows, ""))
}

// TestTokensOfTheEngine: a server whose answers have no account of their tokens, and parts of three tokens each: the
// numbers are those that its engine told.
func TestTokensOfTheEngine(t *testing.T) {
	needs.Root(t, "it loads BPF programs and attaches probes")
	const clients, each, tokens, words = 4, 5, 30, 40
	p := plantedServer{settings: `{"usage": 0, "merge": 3}`}
	for range clients {
		p.clients = append(p.clients, client{requests: each, tokens: tokens, words: words})
	}
	rec := p.record(t)
	if len(rec.Meta.Requests) != clients*each {
		t.Fatalf("%d requests; losses %+v", len(rec.Meta.Requests), rec.Meta.Losses)
	}
	for _, r := range rec.Meta.Requests {
		if r.Parts != tokens/3 || r.OutputTokens != tokens || r.InputTokens != words || r.TokenSource != "engine" {
			t.Errorf("%d output and %d input tokens in %d parts by %q",
				r.OutputTokens, r.InputTokens, r.Parts, r.TokenSource)
		}
	}
}

// TestStepsOfAServerThatTellsNothing: its steps and its batch are those of its iterations and of its streams.
func TestStepsOfAServerThatTellsNothing(t *testing.T) {
	needs.Long(t)
	needs.Root(t, "it loads BPF programs and attaches probes")
	sim := cudasim.Build(t)
	t.Setenv("LD_LIBRARY_PATH", sim.LibraryPath(cudasim.Shape580))
	pid, port := pythonServer(t, "../../testdata/engineserver/gpu_llm.py", sim.Libcudart())
	d := startDaemon(t, pid, "--overhead-budget", "0")
	const clients = 3
	var wait sync.WaitGroup
	errs := make(chan error, clients)
	for range clients {
		c := client{requests: 2, tokens: 200, words: 10}
		wait.Go(func() { errs <- c.ask(port) })
	}
	wait.Wait()
	close(errs)
	for err := range errs {
		must.NoError(t, err)
	}
	rec := d.recording(pid)
	d.stop()
	r := analysis.Run(rec)
	if r.Requests == nil || r.Requests.Engine != nil || r.Requests.Derived == nil {
		t.Fatalf("no steps are derived: %+v, of iterations %+v", r.Requests, r.Diagnosis.Iterations)
	}
	s := r.Requests.Derived
	if s.MaxBatch != clients || s.MeanBatch < 2 || s.Steps < 350 || s.Steps > 450 {
		t.Errorf("%+v", *s)
	}
}

// TestStepsOfAnEngineThatLaunchesAhead: the GPU's time of each step is that of its own kernels, though the next step
// runs when the engine tells of it.
func TestStepsOfAnEngineThatLaunchesAhead(t *testing.T) {
	needs.Long(t)
	needs.Root(t, "it loads BPF programs and attaches probes")
	sim := cudasim.Build(t)
	truths := filepath.Join(t.TempDir(), "truth")
	t.Setenv("LD_LIBRARY_PATH", sim.LibraryPath(cudasim.Shape580))
	t.Setenv("CUDASIM_TRUTH", truths)
	t.Setenv("CUDASIM_TRUTH_LEVEL", "calls")
	pid, port := pythonServer(t, "../../testdata/engineserver/gpu_vllm.py", "{}", sim.Libcudart())
	d := startDaemon(t, pid, "--overhead-budget", "0", "--gpu", "continuous")
	waitFor(t, "an open window", func() bool { // there is none before the GPU is used
		must.NoError(t, (&client{requests: 1, tokens: 2, words: 10}).ask(port))
		windows := d.fetch(pid).Meta.GPU.Windows
		return slices.ContainsFunc(windows, func(w recording.GPUWindow) bool { return w.Activity })
	})
	var wait sync.WaitGroup
	errs := make(chan error, 2)
	for _, c := range []client{{requests: 2, tokens: 80, words: 10}, {requests: 30, tokens: 3, words: 300}} {
		wait.Go(func() { errs <- c.ask(port) })
	}
	wait.Wait()
	must.NoError(t, errors.Join(<-errs, <-errs))
	rec := d.recording(pid)
	d.stop()
	var truth *cudasim.Truth
	for _, p := range rec.Meta.Processes {
		x, err := cudasim.ReadTruth(fmt.Sprint(truths, ".", p.PID))
		if err == nil && x.Copies(cudasim.DeviceToHost).Count > 0 {
			truth = x
		}
	}
	if truth == nil {
		t.Fatalf("no process of %+v used the simulated GPU", rec.Meta.Processes)
	}
	var steps []uint64 // ns on the GPU
	took := uint64(0)
	for _, o := range truth.Ops {
		took += o.End - o.Start
		if o.Copy == cudasim.DeviceToHost {
			steps, took = append(steps, took), 0
		}
	}
	checkSteps(t, rec, steps)
}

// checkSteps compares the GPU's time of requests with that of the engine's steps, which are all in the recording.
func checkSteps(t *testing.T, rec *recording.Recording, steps []uint64) {
	t.Helper()
	s := analysis.Run(rec).Requests
	if s == nil || s.Engine == nil {
		t.Fatalf("%d steps: %+v", len(steps), s)
	}
	if s.Engine.Steps != len(steps) || s.Engine.StepsCut < len(steps)/2 {
		t.Fatalf("%d steps: %+v; losses %+v", len(steps), s.Engine, rec.Meta.Losses)
	}
	byID := recording.ByID(rec.Meta.EngineRequests)
	known, shared := 0, 0
	for _, r := range s.Rows() {
		if r.Engine == nil || r.Engine.GPUExposed == nil || r.Engine.StepsCut != r.Engine.Steps {
			continue
		}
		known++
		q, want, share := byID[r.ID], uint64(0), 0.0
		for i, at := range rec.Meta.Steps {
			if at.TS >= q.First && at.TS <= q.Last {
				want += steps[i]
				share += float64(steps[i]) * tokensOf(at.TS, *q) / tokensOf(at.TS, rec.Meta.EngineRequests...)
			}
		}
		if r.Engine.StepsByTokens == r.Engine.Steps {
			shared++
			if got := float64(*r.Engine.GPUShared); got < share*.95 || got > share*1.05 {
				t.Errorf("%s: a share of %.0f ns on the GPU instead of %.0f", r.ID, got, share)
			}
		}
		if got := *r.Engine.GPUExposed; got < want*95/100 || got > want*105/100 {
			t.Errorf("%s, %d steps: %d ns on the GPU instead of %d", r.ID, r.Engine.Steps, got, want)
		}
	}
	if known < 25 { // of 32: those before the window have none
		t.Errorf("the GPU's time is known of %d of %d requests", known, len(s.Rows()))
	}
	if shared < 15 {
		t.Errorf("the shares of %d of %d requests are by tokens", shared, known)
	}
}

// tokensOf returns how many tokens a step computed for requests: a prompt as a whole, or one.
func tokensOf(step uint64, of ...recording.EngineRequest) (n float64) {
	for _, q := range of {
		if q.First == step {
			n += float64(q.InputTokens)
		} else if q.First < step && q.Last >= step {
			n++
		}
	}
	return n
}
