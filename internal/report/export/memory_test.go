package export_test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// allocations is a recording of one GPU with two stacks: one block of each is live, one was freed, and one allocation
// failed.
func allocations() *recording.Recording {
	const second, mib = 1_000_000_000, 1 << 20
	b := recordtest.New().Window(second, 3*second)
	cache := b.Stack(recordtest.Native("c10::report", "libc10.so"),
		recordtest.Python("fill \"cache\"", "/srv/a.py", 7), recordtest.Python("main", "/srv/a.py", 1))
	weights := b.Stack(recordtest.Python("load", "/srv/b.py", 3))
	add := func(kind event.Kind, ts, dur uint64, flags event.Flags, args ...uint64) {
		e := event.Event{
			TS:    ts,
			Dur:   dur,
			PID:   recordtest.PID,
			TID:   recordtest.PID,
			Func:  event.CUDAMemory,
			Kind:  kind,
			Flags: flags | event.Timed,
		}
		copy(e.Args[:], args)
		b.Event(e)
	}
	add(event.Memory, second, 2*second, 0, 500*mib, 600*mib, 550*mib, 100*mib)
	add(event.MemoryFlow, second, 2*second, 0, 3, 1, 410*mib, 10*mib)
	add(event.Allocation, second+5, 2*second-5, event.Open, weights, 0x7f00_0000_0000, 300*mib, 4096)
	add(event.Allocation, second+7, 2*second-7, event.Open, cache, 0x7f10_0000_0000, 90*mib, 4096)
	add(event.Allocation, second+9, second, 0, cache, 0x7f20_0000_0000, 10*mib, 4096)
	add(event.OutOfMemory, second+10, 0, 0, cache, 900*mib, 500*mib, 600*mib)
	b.Event(event.Event{ // PyTorch asks again
		TS: second + 9, PID: recordtest.PID, Func: event.DriverMemory | 255<<8, Kind: event.OutOfMemory, Flags: event.Timed,
		Args: [4]uint64{b.Stack(recordtest.Native("c10::cuda::CUDACachingAllocator::malloc", "libc10_cuda.so")), 900 * mib},
	})
	return b.Recording()
}

// TestMemoryVizUnknownGPU: what lies on a GPU that is not known is on none of those that are.
func TestMemoryVizUnknownGPU(t *testing.T) {
	python := needs.Tool(t, "python3")
	rec := allocations()
	for i := range rec.Events[:4] { // what is live
		e := rec.Events[i]
		e.Func = event.DriverMemory | 255<<8
		rec.Events = append(rec.Events, e)
	}
	cmd := exec.CommandContext(t.Context(), python, "-c", "import pickle, sys; s = pickle.load(sys.stdin.buffer); "+
		"print([(g['device'], g['total_size'] >> 20) for g in s['segments']], [len(t) for t in s['device_traces']])")
	cmd.Stdin = bytes.NewReader(write(t, rec, "memory_viz"))
	text, err := cmd.Output()
	must.NoError(t, err)
	const want = "[(0, 300), (1, 300), (0, 90), (1, 90), (0, 110), (1, 110)] [6, 2]"
	if got := strings.TrimSpace(string(text)); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestMemoryViz: Python reads the snapshot as what torch.cuda.memory._snapshot would have returned.
func TestMemoryViz(t *testing.T) {
	python := needs.Tool(t, "python3")
	cmd := exec.CommandContext(t.Context(), python, "-c",
		"import json, pickle, sys; json.dump(pickle.load(sys.stdin.buffer), sys.stdout)")
	cmd.Stdin = bytes.NewReader(write(t, allocations(), "memory_viz"))
	text, err := cmd.Output()
	must.NoError(t, err)
	type frame struct {
		Filename, Name string
		Line           int
	}
	var got struct {
		Segments []struct {
			Device    int
			TotalSize uint64 `json:"total_size"`
			Blocks    []struct {
				Address, Size uint64
				State         string
				Frames        []frame
			}
		}
		Traces [][]struct {
			Action string
			Addr   uint64
			Size   uint64
			Time   uint64 `json:"time_us"`
			Frames []frame
		} `json:"device_traces"`
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	all := uint64(0)
	for _, s := range got.Segments {
		all += s.TotalSize
		if len(s.Blocks) != 1 || s.Blocks[0].State != "active_allocated" || len(s.Blocks[0].Frames) == 0 {
			t.Errorf("segment %+v", s)
		}
	}
	if len(got.Segments) != 3 || all != 500<<20 {
		t.Errorf("%d segments of %d bytes, want 3 of all that is allocated", len(got.Segments), all)
	}
	if f := got.Segments[1].Blocks[0].Frames; f[0] != (frame{"/srv/a.py", "fill \"cache\"", 7}) || len(f) != 2 {
		t.Errorf("frames %+v", f)
	}
	var actions []string
	for _, e := range got.Traces[0] {
		actions = append(actions, e.Action)
	}
	if want := "[alloc alloc alloc free_requested free_completed oom]"; len(got.Traces) != 1 || len(actions) != 6 ||
		want != "["+strings.Join(actions, " ")+"]" {
		t.Errorf("traces %v, want %s", actions, want)
	}
	if e := got.Traces[0][0]; e.Addr != 0x7f00_0000_0000 || e.Size != 300<<20 || e.Time == 0 {
		t.Errorf("%+v", e)
	}
}

// TestHeapProfile: pprof reads what is live and what was allocated, by stack.
func TestHeapProfile(t *testing.T) {
	p, err := profile.Parse(bytes.NewReader(write(t, allocations(), "heap")))
	must.NoError(t, err)
	must.NoError(t, p.CheckValid())
	const mib = 1 << 20
	want := map[string][4]int64{
		"c10::report": {
			2,
			100 * mib,
			1,
			90 * mib,
		}, "load": {1, 300 * mib, 1, 300 * mib}, "[before the attach]": {0, 0, 0, 100 * mib},
	}
	for _, s := range p.Sample {
		name := s.Location[0].Line[0].Function.Name
		if got := [4]int64(s.Value); got != want[name] {
			t.Errorf("%s: %v, want %v", name, got, want[name])
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("not in the profile: %v", want)
	}
}
