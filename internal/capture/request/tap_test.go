package request_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/request"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// engineServer runs testdata/engineserver/server.py to its end, watched.
func engineServer(t *testing.T, args ...string) *request.Source {
	t.Helper()
	source, python := startEngine(t, args...)
	if line := python.Line(); line != "done" {
		t.Fatalf("it ends with %q", line)
	}
	source.Feed(0, func([]event.Event) {})
	return source
}

// startEngine has testdata/engineserver/server.py begin, watched.
func startEngine(t *testing.T, args ...string) (*request.Source, *child.Child) {
	t.Helper()
	needs.Root(t, "it loads BPF programs")
	needs.Tool(t, "python3")
	python := child.Start(t, exec.CommandContext(t.Context(), "python3",
		append([]string{"../../../testdata/engineserver/server.py"}, args...)...))
	python.Line()
	source, err := request.New(request.Options{Mode: mode(t)})
	must.NoError(t, err)
	t.Cleanup(func() { _ = source.Close() })
	p, err := proc.Describe(python.PID)
	must.NoError(t, err)
	must.NoError(t, source.Follow(p))
	_, err = io.WriteString(python.In, "go\n")
	must.NoError(t, err)
	return source, python
}

// TestEngine: six requests of five tokens each on an engine with two slots, of which every other has a prompt of 12 KB.
func TestEngine(t *testing.T) {
	before := clock.Monotonic()
	gap := "10" // ms
	if slow() {
		gap = "200" // else the engine is done with one request before it is asked for the next
	}
	source := engineServer(t, "6", "5", gap)
	steps, all := source.Steps(before, clock.Monotonic())
	if len(all) != 6 {
		t.Fatalf("%d requests: %+v; losses %v", len(all), all, source.Losses())
	}
	tokens, waiting := uint32(0), uint32(0)
	for i, s := range steps {
		tokens += s.Tokens
		waiting = max(waiting, s.Waiting)
		if s.Requests == 0 || s.Requests > 2 || s.Running != s.Requests || s.KVPermille != 500 || s.Made > s.TS ||
			s.TS-s.Made > uint64(time.Second) {
			t.Errorf("step %d: %+v", i, s)
		}
	}
	if tokens != 30 || waiting < 3 {
		t.Errorf("%d tokens in %d steps, up to %d requests waited", tokens, len(steps), waiting)
	}
	queued := 0
	for i, q := range all {
		checkEngineRequest(t, i, &q)
		if q.Scheduled-q.Queued > uint64(20*time.Millisecond) {
			queued++
		}
	}
	if queued < 4 {
		t.Errorf("%d requests waited for a slot: %+v", queued, all)
	}
	text, err := json.Marshal(all)
	if err != nil || bytes.Contains(text, []byte("31337")) {
		t.Errorf("%s, %v", text, err)
	}
	if l := source.Losses(); len(l) > 0 {
		t.Error(l)
	}
}

// TestLargeBatch: the tokens of all requests of a batch of a thousand are known, though a step's message is 64 KB long.
func TestLargeBatch(t *testing.T) {
	const requests, tokens = 1000, 8
	before := clock.Monotonic()
	source := engineServer(t, fmt.Sprint(requests), fmt.Sprint(tokens), "0", fmt.Sprint(requests))
	steps, all := source.Steps(before, clock.Monotonic())
	batch := uint32(0)
	for _, s := range steps {
		batch = max(batch, s.Requests)
	}
	ended := 0
	for _, q := range all {
		if q.OutputTokens == tokens && q.Steps == tokens && q.Finish == "length" && q.InputTokens == 7 {
			ended++
		}
	}
	if l := source.Losses(); ended != requests || batch != requests || len(l) > 0 {
		t.Errorf("%d of %d requests are whole, of batches of up to %d; losses %v", ended, len(all), batch, l)
	}
}

// TestLostEngineMessages: nobody reads the ring until it is full. Steps that are lost, whole ones or the rest of long
// messages, are in no other step; what the requests of the time have is not known, of those that begin later all is.
func TestLostEngineMessages(t *testing.T) {
	for _, test := range []struct{ slots, tokens int }{{200, 2000}, {1000, 300}} {
		t.Run(fmt.Sprintf("%d requests", test.slots), func(t *testing.T) {
			before := clock.Monotonic()
			source, python := startEngine(
				t, fmt.Sprint(2*test.slots), fmt.Sprint(test.tokens), "0", fmt.Sprint(test.slots))
			done := make(chan string)
			go func() { done <- python.Line() }()
			lost := func() (n, others uint64) {
				for _, l := range source.Losses() {
					if l.Where == "transfers" && int(l.PID) == python.PID {
						n += l.Count
					} else if l.Where != "engine messages" {
						others += l.Count
					}
				}
				return n, others
			}
			poll := func(until func() bool) {
				for !until() {
					select {
					case <-done:
						t.Fatal("it has ended too early")
					case <-time.After(time.Millisecond):
					}
				}
			}
			poll(func() bool { n, _ := lost(); return n > 0 })
			for ended := false; !ended; source.Feed(0, func([]event.Event) {}) {
				select {
				case <-done:
					ended = true
				case <-time.After(time.Millisecond):
				}
			}
			if n, others := lost(); n == 0 || others > 0 {
				t.Errorf("losses %+v", source.Losses())
			}
			steps, all := source.Steps(before, clock.Monotonic())
			missed, unknown, known := 0, 0, 0
			for _, s := range steps {
				if s.Missed {
					missed++
				}
				if s.Tokens != s.Requests || int(s.Requests) > test.slots || s.Made > s.TS {
					t.Fatalf("%+v", s)
				}
			}
			for _, q := range all {
				switch {
				case !strings.HasSuffix(q.ID, "-0-deadbeef") || q.First == 0:
					t.Fatalf("%+v", q)
				case q.Finish == "length" && q.OutputTokens == 0:
					unknown++
				case q.Finish == "length" && int(q.OutputTokens) == test.tokens:
					known++
				default:
					t.Errorf("%+v", q)
				}
			}
			if missed == 0 || unknown != test.slots || known != test.slots {
				t.Errorf("%d times steps were lost, the tokens of %d requests are known, and not of %d; losses %+v",
					missed, known, unknown, source.Losses())
			}
		})
	}
}

// TestEngineWhileOff: what requests have that went on while the source was off is not known.
func TestEngineWhileOff(t *testing.T) {
	const tokens = 200
	before := clock.Monotonic()
	source, python := startEngine(t, "4", fmt.Sprint(tokens), "2")
	until := func(n int) {
		for {
			source.Feed(0, func([]event.Event) {})
			if steps, _ := source.Steps(before, clock.Monotonic()); len(steps) >= n {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}
	until(tokens / 4)
	must.NoError(t, source.SetLevel(len(source.Levels())-1))
	time.Sleep(50 * time.Millisecond) // of steps that are not seen
	must.NoError(t, source.SetLevel(0))
	if line := python.Line(); line != "done" {
		t.Fatalf("it ends with %q", line)
	}
	source.Feed(0, func([]event.Event) {})
	_, all := source.Steps(before, clock.Monotonic())
	unknown := 0
	for _, q := range all {
		if q.OutputTokens == 0 {
			unknown++
		} else if q.OutputTokens != tokens {
			t.Errorf("%+v", q)
		}
	}
	if len(all) != 4 || unknown != 2 {
		t.Errorf("%+v", all)
	}
}

func checkEngineRequest(t *testing.T, i int, q *recording.EngineRequest) {
	t.Helper()
	want := uint32(7)
	if i%2 == 1 {
		want = 4000
	}
	if !strings.HasSuffix(q.ID, "-0-deadbeef") || q.InputTokens != want || q.CachedTokens != 4 || q.OutputTokens != 5 ||
		q.Steps != 5 || q.Finish != "length" || q.Preemptions != 0 {
		t.Errorf("%+v", q)
	}
	if q.Asked == 0 || q.Asked > q.Queued || q.Queued > q.Scheduled || q.Scheduled > q.First || q.First > q.Last {
		t.Errorf("times are out of order: %+v", q)
	}
}

// TestStrangeEngineIsIgnored: what is no engine is not copied any more.
func TestStrangeEngineIsIgnored(t *testing.T) {
	source, python := startEngine(t, "2", "400", "2", "strange")
	for source.TapDetail() == "" {
		time.Sleep(time.Millisecond)
		source.Feed(0, func([]event.Event) {})
	}
	source.Feed(0, func([]event.Event) {})
	before := source.Transfers(uint32(python.PID))
	if line := python.Line(); line != "done" {
		t.Fatalf("it ends with %q", line)
	}
	if n := source.Transfers(uint32(python.PID)) - before; n > 200 { // of some 400
		t.Errorf("%d transfers were recorded", n)
	}
}

// TestStrangeEngine: messages of another shape are left alone, and it says so.
func TestStrangeEngine(t *testing.T) {
	source := engineServer(t, "2", "20", "1", "strange")
	if steps, _ := source.Steps(0, clock.Monotonic()); len(steps) > 0 {
		t.Errorf("%+v", steps)
	}
	if said := source.TapDetail(); !strings.Contains(said, "unknown shape") {
		t.Errorf("it says %q", said)
	}
}
