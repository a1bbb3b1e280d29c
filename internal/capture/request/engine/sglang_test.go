package engine

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// sglangFiles are messages that the classes of real versions made, one of each kind:
// testdata/engineserver/sglang_messages.py.
func sglangFiles(t testing.TB) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob("testdata/sglang-*.bin")
	if err != nil || len(names) < 6 {
		t.Fatalf("%d files, %v", len(names), err)
	}
	files := map[string][]byte{}
	for _, name := range names {
		b, err := os.ReadFile(name)
		must.NoError(t, err)
		files[filepath.Base(name)] = b
	}
	return files
}

// TestSGLang: what the classes of each version made is read, and nothing of prompts and answers.
func TestSGLang(t *testing.T) {
	for file, b := range sglangFiles(t) {
		t.Run(file, func(t *testing.T) {
			var s seen
			c := New(&s)
			c.Sent(7, b, len(b))
			if c.Known() != 4 || c.Strange() || c.Cut() > 0 || c.Misshapen() {
				t.Fatalf("%d messages are known, %d cut: %+v", c.Known(), c.Cut(), s)
			}
			if len(s.requests) != 1 || s.requests[0] != (Request{TS: 7, ID: "r-1"}) {
				t.Errorf("requests %+v", s.requests)
			}
			if len(s.aborts) != 1 || s.aborts[0] != "r-3" || len(s.texts) != 1 || s.texts[0] != "r-2" {
				t.Errorf("aborts %q, texts %q", s.aborts, s.texts)
			}
			checkSGLangStep(t, file, &s)
		})
	}
}

func checkSGLangStep(t *testing.T, file string, s *seen) {
	t.Helper()
	want := []Output{
		{ID: "r-1", Sums: true, Total: 1, Prompt: 10, Cached: 4, Computed: 6, Queued: 100.25e9, Scheduled: 100.5e9},
		{
			ID: "r-2", Sums: true, Total: 5, Prompt: 20, Computed: 20, Finish: "length", Queued: 99e9, Scheduled: 100e9,
			Preempts: 1,
		},
		{ID: "r-3", Sums: true, Total: 2, Prompt: 30, Computed: 30, Finish: "abort", Queued: 99e9, Scheduled: 100e9},
	}
	switch file {
	case "sglang-0.4.3.post2.bin": // it tells neither times nor preemptions
		want[0].Queued, want[0].Scheduled, want[2].Queued, want[2].Scheduled = 0, 0, 0, 0
		want[1].Queued, want[1].Scheduled, want[1].Preempts = 0, 0, 0
	case "sglang-0.5.23-msgpack.bin": // they lie where versions differ
		want[0].Queued, want[0].Scheduled, want[2].Queued, want[2].Scheduled = 0, 0, 0, 0
		want[1].Queued, want[1].Scheduled, want[1].Preempts = 0, 0, 0
	}
	if len(s.steps) != 1 || !reflect.DeepEqual(s.steps[0].Outputs, want) {
		t.Fatalf("%+v\nwant %+v", s.steps, want)
	}
	x := s.steps[0]
	if told := file == "sglang-0.5.10.bin"; x.Stats != told || told && (x.Running != 3 || x.Waiting != 7) {
		t.Errorf("%+v", x)
	}
}

// TestSGLangCut: of messages whose ends are not seen, what was seen is true: no other names, no other numbers.
func TestSGLangCut(t *testing.T) {
	for file, b := range sglangFiles(t) {
		finished, totals := 0, 0
		for cut := range b {
			var s seen
			c := New(&s)
			c.Sent(7, b[:cut], len(b))
			if c.Misshapen() {
				t.Fatalf("%s: cut at %d it has an unknown shape", file, cut)
			}
			for _, r := range s.requests {
				if r.ID != "r-1" {
					t.Fatalf("%s: cut at %d there is a request %+v", file, cut, r)
				}
			}
			for _, x := range s.steps {
				for i, o := range x.Outputs {
					name, total := []string{"r-1", "r-2", "r-3"}[i], []uint32{1, 5, 2}[i]
					why := []finish{"", "length", "abort"}[i]
					if o.ID != name || o.Finish != "" && o.Finish != why || !o.Unseen && o.Total != total {
						t.Fatalf("%s: cut at %d there is %+v", file, cut, o)
					}
					if o.Finish != "" {
						finished++
					}
					if !o.Unseen {
						totals++
					}
				}
			}
		}
		if finished == 0 || totals == 0 {
			t.Errorf("%s: %d ends and %d sums were read of messages that are cut", file, finished, totals)
		}
	}
}

// TestSGLangLong: a request with a long prompt is told by its beginning.
func TestSGLangLong(t *testing.T) {
	b := sglangFiles(t)["sglang-0.5.10.bin"]
	var s seen
	c := New(&s)
	c.Sent(1, b[:200], 100_000)
	if len(s.requests) != 1 {
		t.Errorf("%+v", s.requests)
	}
}

// TestOtherSGLang: another shape of a class that is known is told apart from another class.
func TestOtherSGLang(t *testing.T) {
	b := sglangFiles(t)["sglang-0.5.10.bin"]
	for _, x := range []struct {
		from, to string
		shape    bool
	}{{"completion_tokens", "completion_tokenz", true}, {"sglang.srt.managers", "zglang.srt.managers", false}} {
		var s seen
		c := New(&s)
		other := bytes.ReplaceAll(b, []byte(x.from), []byte(x.to))
		for range maxStrange {
			c.Sent(1, other, len(other))
		}
		if len(s.steps) > 0 || c.Misshapen() != x.shape {
			t.Errorf("%s: %d steps, misshapen %v", x.to, len(s.steps), c.Misshapen())
		}
		if !x.shape && !c.Strange() {
			t.Errorf("%s: it goes on", x.to)
		}
	}
}

func FuzzPickle(f *testing.F) {
	for _, b := range sglangFiles(f) {
		cutter := frames{}
		cutter.take(b, len(b), func(_ byte, body []byte, _ bool) { f.Add(body) })
	}
	f.Add([]byte("\x80\x04]\x94(h\x00h\x00e."))
	f.Fuzz(func(t *testing.T, b []byte) {
		p := pickle{b: b}
		p.read()
		p.message()
		if p.made > len(b)+1 || len(p.memo) > maxValues {
			t.Errorf("%d values, %d remembered of %d bytes", p.made, len(p.memo), len(b))
		}
		var s seen
		c := New(&s)
		c.sglang(b, true)
		c.sglang(b, false)
	})
}
