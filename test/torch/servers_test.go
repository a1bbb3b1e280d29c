package torch

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/test/watch"
)

// What is asked of a server, and how near the times of its writes must be to those at which the client's kernel has the
// packets: that takes out how long a client waits for a CPU on a machine that is full. The bound is for the 99th
// percentile; it is what a loopback connection takes, and what measuring may cost.
const (
	maxTokens = 24
	within    = time.Millisecond
)

// What scripts/test-torch.sh makes.
const (
	madePython = "../../build/torch/bin/python"
	madeLlama  = "../../build/llama/llama-server"
)

// interpreter returns one that has these packages.
func interpreter(t *testing.T, packages string) string {
	t.Helper()
	python := cmp.Or(os.Getenv("TORCH_PYTHON"), madePython)
	if out, err := exec.Command(python, "-c", "import "+packages).CombinedOutput(); err != nil {
		t.Skipf("%s lacks %s (scripts/test-torch.sh prepare makes one that has them): %v\n%s", python, packages, err, out)
	}
	return python
}

// TestLlamaServer holds the requests of llama.cpp's server on the CPU against its clients.
func TestLlamaServer(t *testing.T) {
	watch.NeedRoot(t)
	program := cmp.Or(os.Getenv("LLAMA_SERVER"), madeLlama)
	if _, err := os.Stat(program); err != nil {
		t.Skipf("no llama-server (LLAMA_SERVER, or scripts/llama-server.sh, which builds one): %v", err)
	}
	python := interpreter(t, "gguf, numpy")
	model := filepath.Join(t.TempDir(), "model.gguf")
	must.Run(t, exec.Command(python, "../gpu/servers/random_gguf.py", model, "2", "128"))
	port := freePort(t)
	compareWithClients(t, exec.CommandContext(t.Context(), program, "-m", model, "--host", "127.0.0.1",
		"--port", port, "-np", "16", "-c", "16384", "-t", "1", "--threads-http",
		"20"), asked{port: port, model: "m", fields: map[string]any{"ignore_eos": true}})
}

// TestTransformersServe holds the requests of transformers serve on the CPU against its clients. It answers 422 to
// fields that it does not know, as ignore_eos.
func TestTransformersServe(t *testing.T) {
	watch.NeedRoot(t)
	python := interpreter(t, "torch, transformers, fastapi, uvicorn, openai")
	model := t.TempDir()
	write := exec.Command(python, "../gpu/engines.py", model, "2", "128", "float32")
	must.Run(t, write)
	port := freePort(t)
	cmd := exec.CommandContext(t.Context(), python, "-m", "transformers.cli.transformers", "serve", "--host",
		"127.0.0.1", "--port", port, "--device", "cpu")
	cmd.Env = append(os.Environ(), "HF_HUB_OFFLINE=1", "OMP_NUM_THREADS=1")
	compareWithClients(t, cmd, asked{port: port, model: model})
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	defer func() { _ = l.Close() }()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// asked is a server and what requests to it hold beside what all hold.
type asked struct {
	port, model string
	fields      map[string]any
}

// answer is what a client saw.
type answer struct {
	id     string
	tokens []arrival // of each part with content
	usage  uint32    // tokens, as the server counts them; 0: it does not
}

// arrival is when bytes came: when the client had read them, and when its kernel had the packet, or the last of those
// that were read at once.
type arrival struct {
	read, kernel uint64
	end          int // of the bytes of the answer so far
}

// compareWithClients starts a server and the daemon, asks on 1 and on 16 streams at a time, and compares what is
// recorded with what the clients saw by their own clock.
func compareWithClients(t *testing.T, cmd *exec.Cmd, a asked) {
	log, err := os.Create(filepath.Join(t.TempDir(), "server"))
	must.NoError(t, err)
	defer func() { _ = log.Close() }()
	cmd.Stderr = log
	server := child.Start(t, cmd)
	go func() { // what it prints is of no use, but it may not wait for a reader
		for server.Out.Scan() {
		}
	}()
	for end := time.Now().Add(watch.Timeout); ; time.Sleep(200 * time.Millisecond) {
		if _, err = request(a); err == nil {
			break
		}
		if refused := (refusal{}); errors.As(err, &refused) && refused.status/100 == 4 || time.Now().After(end) {
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("the server does not answer: %v\n%s", err, text[max(0, len(text)-3000):])
		}
	}
	d := watch.Start(t, server.PID, "--gpu", "off", "--pin-level", "requests=all")
	var all []answer
	for _, streams := range []int{1, 16} {
		late := "not asked"
		for try := 0; try < 5 && late != ""; try++ { // a writer may lose its CPU within its call
			before := len(all)
			for range 2 {
				got, errs, wait := make([]answer, streams), make([]error, streams), sync.WaitGroup{}
				for i := range streams {
					wait.Go(func() { got[i], errs[i] = request(a) })
				}
				wait.Wait()
				must.NoError(t, errors.Join(errs...))
				all = append(all, got...)
			}
			late = compare(t, ended(t, d, server.PID, len(all)), streams, all[before:])
		}
		if late != "" {
			t.Errorf("%d streams: %s", streams, late)
		}
	}
	d.Stop()
}

// ended returns a recording in which so many requests have ended.
func ended(t *testing.T, d *watch.Daemon, pid, n int) *recording.Recording {
	t.Helper()
	var rec *recording.Recording
	running := func(r recording.Request) bool { return r.End == 0 }
	t.Cleanup(func() {
		if t.Failed() && rec != nil {
			t.Logf("%d requests: %+v; losses %+v", len(rec.Meta.Requests), rec.Meta.Requests, rec.Meta.Losses)
		}
	})
	d.Until(fmt.Sprintf("%d requests to end", n), func() bool {
		rec = d.Recording(pid, api.Window{Last: time.Hour})
		return !slices.ContainsFunc(rec.Meta.Requests, running) && len(rec.Meta.Requests) >= n
	})
	if len(rec.Meta.Requests) != n {
		t.Errorf("%d requests are recorded, and %d were asked", len(rec.Meta.Requests), n)
	}
	return rec
}

// refusal is an answer that is no stream.
type refusal struct {
	status int
	text   string
}

func (r refusal) Error() string { return r.text }

// request asks for a stream on a connection of its own.
func request(a asked) (out answer, err error) {
	question := map[string]any{
		"model": a.model, "stream": true, "max_tokens": maxTokens, "stream_options": map[string]any{"include_usage": true},
		"messages": []any{map[string]any{"role": "user", "content": strings.Repeat("t0042 ", 30)}},
	}
	maps.Copy(question, a.fields)
	body, err := json.Marshal(question)
	if err != nil {
		return out, err
	}
	conn, err := net.Dial("tcp", "127.0.0.1:"+a.port)
	if err != nil {
		return out, err
	}
	defer func() { _ = conn.Close() }()
	_, err = fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	if err != nil {
		return out, err
	}
	data, arrivals, err := readAll(conn.(*net.TCPConn))
	if err != nil {
		return out, err
	}
	if status := 0; !bytes.HasPrefix(data, []byte("HTTP/1.1 200 ")) {
		_, _ = fmt.Sscanf(string(data), "HTTP/1.1 %d", &status)
		return out, refusal{status, string(data)}
	}
	return parse(data, arrivals)
}

// parse finds the parts of an answer: each is a line, whose last byte tells when it came.
func parse(data []byte, arrivals []arrival) (out answer, err error) {
	at := 0
	for line := range bytes.Lines(data) {
		at += len(line)
		for arrivals[0].end < at {
			arrivals = arrivals[1:]
		}
		text, found := bytes.CutPrefix(line, []byte("data: "))
		var part struct {
			ID      string
			Choices []struct{ Delta struct{ Content string } }
			Usage   struct {
				Tokens uint32 `json:"completion_tokens"`
			}
		}
		if !found || json.Unmarshal(text, &part) != nil {
			continue
		}
		out.id, out.usage = cmp.Or(out.id, part.ID), max(out.usage, part.Usage.Tokens)
		if len(part.Choices) > 0 && part.Choices[0].Delta.Content != "" {
			out.tokens = append(out.tokens, arrivals[0])
		}
	}
	if len(out.tokens) == 0 {
		return out, errors.New("an answer without content")
	}
	return out, nil
}

// readAlone reports whether a part was read without another one.
func readAlone(parts []arrival, i int) bool {
	return (i == 0 || parts[i-1].end != parts[i].end) && (i == len(parts)-1 || parts[i+1].end != parts[i].end)
}

// readAll reads to the end, with when each read's bytes came.
func readAll(conn *net.TCPConn) (data []byte, arrivals []arrival, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1) })
	if err := errors.Join(failed, err); err != nil {
		return nil, nil, err
	}
	part, control := make([]byte, 1<<16), make([]byte, 128)
	for {
		var n, controls int
		failed := raw.Read(func(fd uintptr) bool {
			n, controls, _, _, err = unix.Recvmsg(int(fd), part, control, 0)
			return !errors.Is(err, unix.EAGAIN)
		})
		if err := errors.Join(failed, err); err != nil || n == 0 {
			return data, arrivals, err
		}
		now := arrival{read: clock.Monotonic()}
		realTime := uint64(time.Now().UnixNano())
		messages, err := unix.ParseSocketControlMessage(control[:controls])
		if err != nil {
			return nil, nil, err
		}
		for _, m := range messages {
			if m.Header.Type == unix.SO_TIMESTAMPNS && len(m.Data) >= 16 {
				seconds, rest := binary.NativeEndian.Uint64(m.Data), binary.NativeEndian.Uint64(m.Data[8:])
				now.kernel = now.read - (realTime - seconds*1e9 - rest)
			}
		}
		data = append(data, part[:n]...)
		now.end = len(data)
		arrivals = append(arrivals, now)
	}
}

// compare finds each client's request by its id, and returns which times are not near enough; "": all are.
func compare(t *testing.T, rec *recording.Recording, streams int, clients []answer) (late string) {
	t.Helper()
	written := map[uint64][]uint64{}
	for i := range rec.Events {
		if e := &rec.Events[i]; e.Kind == event.RequestChunk {
			for range e.Args[1] { // parts in one write
				written[e.Args[0]] = append(written[e.Args[0]], e.End())
			}
		}
	}
	byID := map[string]*recording.Request{}
	for i := range rec.Meta.Requests {
		byID[rec.Meta.Requests[i].ID] = &rec.Meta.Requests[i]
	}
	var own, ownGaps, kernel, kernelGaps, ttft []float64
	tokens, parts := uint32(0), 0
	for _, c := range clients {
		r := byID[c.id]
		if r == nil {
			t.Errorf("the request %q is not recorded", c.id)
			continue
		}
		at := written[r.Number]
		want := cmp.Or(c.usage, uint32(len(c.tokens)))
		if r.Outcome != "complete" || r.OutputTokens != want || len(at) != len(c.tokens) || r.Unreadable {
			t.Errorf("a client saw %d parts and %d tokens; recorded are %d parts of %+v", len(c.tokens), want, len(at), *r)
			continue
		}
		tokens, parts = tokens+r.OutputTokens, parts+len(at)
		for i, token := range c.tokens {
			if at[i] > token.read+uint64(within) {
				late = fmt.Sprintf("part %d was written %d ns after the client had read it", i, at[i]-token.read)
			}
			if i > 0 {
				last := c.tokens[i-1]
				ownGaps = append(ownGaps, math.Abs(float64(token.read-last.read)-float64(at[i]-at[i-1])))
				// Parts that were read at once have the time of the last packet.
				if readAlone(c.tokens, i-1) && readAlone(c.tokens, i) {
					kernelGaps = append(kernelGaps, math.Abs(float64(token.kernel-last.kernel)-float64(at[i]-at[i-1])))
				}
			}
		}
		own = append(own, float64(c.tokens[0].read)-float64(at[0]))
		if readAlone(c.tokens, 0) {
			kernel = append(kernel, math.Abs(float64(c.tokens[0].kernel)-float64(at[0])))
		}
		ttft = append(ttft, float64(r.TTFT()))
	}
	if len(kernel) == 0 || len(kernelGaps) == 0 {
		t.Fatalf("%d first tokens and %d gaps to compare", len(kernel), len(kernelGaps))
	}
	of := func(v []float64, percent int) float64 {
		slices.Sort(v)
		return v[(len(v)*percent+99)/100-1] / 1e6
	}
	t.Logf("%d streams: %d requests, %d tokens, %d parts; TTFT p50 %.1f ms", streams, len(own), tokens, parts, of(ttft, 50))
	for _, x := range []struct {
		clock       string
		first, gaps []float64
	}{{"the client's kernel", kernel, kernelGaps}, {"the client's thread", own, ownGaps}} {
		t.Logf("by the clock of %s: %d first tokens differ by p50 %.3f ms, p99 %.3f ms; %d gaps by p50 %.3f ms, p99 %.3f ms",
			x.clock, len(x.first), of(x.first, 50), of(x.first, 99), len(x.gaps), of(x.gaps, 50), of(x.gaps, 99))
	}
	if limit := within.Seconds() * 1e3; of(kernel, 99) > limit || of(kernelGaps, 99) > limit {
		late = "times are not those at which packets came"
	}
	return late
}
