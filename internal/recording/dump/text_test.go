package dump

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

func example() *Dump {
	d := New("test", 10)
	internal := Frame{Frame: recordtest.Native("_PyFunction_Vectorcall", "python3.12"), Internal: true}
	d.Processes = []Process{
		{
			PID: 10, NSPID: 1, Comm: "python", Cmdline: "python infer.py", Runtime: "Python 3.12",
			Path:  "/usr/bin/python3.12",
			Notes: []string{"the interpreter was replaced"},
			Threads: []Thread{
				{TID: 10, Name: "main", State: Idle, Doing: "read of pipe:[1]", Whole: true, Frames: []Frame{
					{
						Frame: recordtest.Native("read", "libc.so.6"),
					}, {
						Frame: recordtest.Python("f", "/app/f.py", 3),
					}, internal, {Frame: recordtest.Native("main", "")},
				}},
				{
					TID:    11,
					Name:   "busy",
					State:  Active,
					Cut:    "it is on a CPU, so that its registers are not known",
					Frames: []Frame{{Frame: recordtest.Python("g", "/app/f.py", 9)}},
				},
				{
					TID:    12,
					Name:   "ready",
					State:  Runnable,
					Whole:  true,
					Torn:   true,
					Frames: []Frame{internal, {Frame: recordtest.Native("h", "libh.so")}},
				},
				{
					TID:      13,
					Name:     "gil",
					State:    Idle,
					Activity: "waiting for the GIL",
					Doing:    "a lock or condition (futex 0x1)",
					Cut:      "generated code",
					Frames:   []Frame{{Frame: recordtest.Native("take_gil", "python3.12")}},
				},
				{TID: 14, Name: "gc", State: Active, Activity: "garbage collection", Frames: []Frame{}},
				{TID: 15, Name: "gone", State: Exited, Cut: "no frame pointer", Frames: []Frame{internal}},
			},
		},
		{PID: 20, Comm: "sh", Threads: []Thread{{TID: 20, Name: "a\"\x1b[31mb", State: Stopped, Frames: []Frame{}}}},
	}
	return d
}

const exampleText = `Process 10 (1 in its own namespace): python infer.py
Python 3.12 (/usr/bin/python3.12)
Note: the interpreter was replaced

Thread 10 (idle: read of pipe:[1]): "main"
    read (libc.so.6)
    f (/app/f.py:3)
    main

Thread 11 (active): "busy"
    g (/app/f.py:9)
    (native frames may be missing: it is on a CPU, so that its registers are not known)

Thread 12 (active, waiting for a CPU): "ready"
    h (libh.so)
    (it ran while it was read: frames of several moments may be mixed)

Thread 13 (idle, waiting for the GIL: a lock or condition (futex 0x1)): "gil"
    take_gil (python3.12)
    (native frames may be missing: generated code)

Thread 14 (active, garbage collection): "gc"
    (no frames)

Thread 15 (exited): "gone"
    (no frames: no frame pointer)

Process 20: sh

Thread 20 (stopped): "a\"?[31mb"
    (no frames)
`

func TestText(t *testing.T) {
	var out bytes.Buffer
	must.NoError(t, Text(&out, example(), TextOptions{}))
	if diff := cmp.Diff(strings.Split(exampleText, "\n"), strings.Split(out.String(), "\n")); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
	for _, r := range out.String() {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Fatalf("the text holds %U", r)
		}
	}
}

func TestColorChangesNoWord(t *testing.T) {
	var out bytes.Buffer
	must.NoError(t, Text(&out, example(), TextOptions{Color: true}))
	plain := regexp.MustCompile(`\x1b\[[0-9;]*m`).ReplaceAllString(out.String(), "")
	if plain == out.String() || plain != exampleText {
		t.Errorf("colour changes the text:\n%s", plain)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

var errBroken = errors.New("no space left on device")

func TestWriteErrorsAreReturned(t *testing.T) {
	if err := Text(brokenWriter{}, example(), TextOptions{}); !errors.Is(err, errBroken) {
		t.Errorf("%v, want the writer's error", err)
	}
}

// TestEqualStacksAreShownOnce: threads of a pool that do the same are one group; a frame, a state or an internal frame
// that differs makes another.
func TestEqualStacksAreShownOnce(t *testing.T) {
	frame := func(name string, internal bool) Frame {
		return Frame{
			Frame:    recording.Frame{Kind: recording.PythonFrame, Name: name, File: "pool.py", Line: 7},
			Internal: internal,
		}
	}
	p := Process{PID: 1, Comm: "python"}
	for i := range 12 {
		th := Thread{
			TID:    uint32(10 + i),
			Name:   "worker",
			State:  Idle,
			Doing:  "futex",
			Frames: []Frame{frame("wait", false), frame("eval", true)},
		}
		switch i {
		case 3:
			th.Name = "loader"
		case 5:
			th.Frames = []Frame{frame("work", false)}
		case 6:
			th.State = Active
		case 7:
			th.Frames = []Frame{frame("wait", false), frame("other", true)}
		}
		p.Threads = append(p.Threads, th)
	}
	var out strings.Builder
	must.NoError(t, Text(&out, &Dump{Processes: []Process{p}}, TextOptions{}))
	for _, want := range []string{
		"9 threads (idle: futex): \"worker\" 10, 11, 12, 14, 18, 19, 20; \"loader\" 13 and 1 more\n" +
			"    wait (pool.py:7)\n",
		"Thread 15 (idle: futex): \"worker\"\n    work (pool.py:7)\n", "Thread 16 (active)",
		"Thread 17 (idle: futex): \"worker\"\n    wait (pool.py:7)\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

// FuzzText: whatever a daemon answers, the text is finite, and holds nothing that a terminal would obey.
func FuzzText(f *testing.F) {
	seed, err := json.Marshal(example())
	must.NoError(f, err)
	f.Add(seed, true)
	f.Add([]byte(`{"processes":[{"threads":[{"name":"\u001b[2J\u202e","frames":[{}]}]},{}]}`), false)
	fuzzing.Run(f, func(t *testing.T, answer []byte, all bool) {
		var d Dump
		if json.Unmarshal(answer, &d) != nil {
			return
		}
		var out bytes.Buffer
		must.NoError(t, Text(&out, &d, TextOptions{All: all}))
		if out.Len() > 4096+64*len(answer) {
			t.Errorf("%d bytes of %d", out.Len(), len(answer))
		}
		for _, r := range out.String() {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Fatalf("%q: the text holds %U", answer, r)
			}
		}
	})
}
