package archive_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// random makes a recording of every kind of event, also of kinds that do not exist, with arbitrary bits.
func random(r *rand.Rand, n int) *recording.Recording {
	from := r.Uint64N(1 << 50)
	span := 1 + r.Uint64N(35_000_000_000)
	rec := &recording.Recording{Meta: randomMeta(r, from, from+span)}
	for range n {
		e := event.Event{
			TS: from + r.Uint64N(span), PID: r.Uint32(), TID: r.Uint32(), Func: uint16(r.Uint32N(8)),
			Kind: event.Kind(r.Uint32N(16)), Flags: event.Flags(r.Uint32()), Ret: int32(r.Uint32()),
			Args: [4]uint64{r.Uint64(), r.Uint64() >> r.Uint32N(64), 0, r.Uint64()},
		}
		switch r.Uint32N(8) {
		case 0:
			e.TS = from + span/2 // many in the same ns
		case 1:
			e.TS = from - min(from, r.Uint64N(1<<30)) // began before the window
		case 2:
			e.Kind = event.Kind(r.Uint32())
		}
		if r.Uint32N(2) == 0 {
			e.Dur = r.Uint64N(math.MaxInt64 - e.TS)
		}
		rec.Events = append(rec.Events, e)
	}
	slices.SortStableFunc(rec.Events, func(a, b event.Event) int {
		if a.TS < b.TS {
			return -1
		}
		if a.TS > b.TS {
			return 1
		}
		return 0
	})
	if n == 0 {
		rec.Events = []event.Event{}
	}
	return rec
}

func word(r *rand.Rand) string {
	words := []string{"", "a", "größe", "x\x00y", "日本", "very long " + fmt.Sprint(r.Uint64())}
	return words[r.IntN(len(words))]
}

// several returns nil, an empty slice or up to five values.
func several[T any](r *rand.Rand, value func() T) []T {
	n := r.IntN(7) - 1
	if n < 0 {
		return nil
	}
	out := make([]T, 0, n)
	for range n {
		out = append(out, value())
	}
	return out
}

func randomMeta(r *rand.Rand, from, to uint64) recording.Meta {
	thread := func() recording.Thread { return recording.Thread{PID: r.Uint32(), TID: r.Uint32(), Name: word(r)} }
	m := recording.Meta{
		Schema: recording.SchemaVersion, Version: word(r),
		Host:   recording.Host{Kernel: word(r), Arch: "amd64", CPUs: r.IntN(99)},
		Target: r.Uint32(), From: from, To: to, WallFrom: r.Int64(),
		Processes: several(r, func() recording.Process {
			return recording.Process{
				PID:      r.Uint32(),
				NSPID:    r.Uint32(),
				Comm:     word(r),
				Cmdline:  word(r),
				Born:     r.Uint64(),
				Died:     r.Uint64(),
				ExitCode: -r.Int32(),
			}
		}),
		Threads: several(r, thread), OtherThreads: several(r, thread),
		Communicators: several(r, func() recording.Communicator {
			return recording.Communicator{
				PID: r.Uint32(), Address: r.Uint64(), Hash: word(r), Rank: r.IntN(9), Ranks: r.IntN(9), GPU: r.IntN(9),
			}
		}),
		Functions: several(r, func() recording.Function {
			return recording.Function{
				Name:  word(r),
				Base:  word(r),
				Group: []string{"launch", "copy"}[r.IntN(2)],
				Timed: r.IntN(2) == 0,
			}
		}),
		Libraries: several(r, func() recording.Library {
			return recording.Library{PID: r.Uint32(), Path: word(r), Inode: r.Uint64(), Found: -r.Int()}
		}),
		Sources: several(r, func() recording.Source { return recording.Source{Name: word(r), State: word(r)} }),
		Losses: several(r,
			func() loss.Loss { return loss.Loss{Reason: loss.RingFull, Count: r.Uint64(), Where: word(r)} }),
		Frames: several(r, func() recording.Frame {
			return recording.Frame{Kind: recording.PythonFrame, Name: word(r), File: word(r), Line: r.Uint32()}
		}),
		Stacks: several(r,
			func() recording.Node { return recording.Node{Parent: int32(r.Uint32()), Frame: r.Uint32()} }),
		Objects: several(r, func() recording.Object {
			return recording.Object{PID: r.Uint32(), Inode: r.Uint64(), Name: word(r), Role: recording.Accepted}
		}),
		Requests: several(r, func() recording.Request {
			return recording.Request{
				Number:       r.Uint64(),
				PID:          r.Uint32(),
				FirstToken:   r.Uint64(),
				Route:        word(r),
				Model:        word(r),
				Streamed:     r.IntN(2) == 0,
				OutputTokens: r.Uint32(),
				TokenSource:  word(r),
			}
		}),
		Steps: several(r, func() recording.Step {
			return recording.Step{
				TS:         r.Uint64(),
				Made:       r.Uint64(),
				PID:        r.Uint32(),
				Requests:   r.Uint32(),
				Stats:      r.IntN(2) == 0,
				KVPermille: r.Uint32(),
			}
		}),
		EngineRequests: several(r, func() recording.EngineRequest {
			return recording.EngineRequest{
				ID:          word(r),
				PID:         r.Uint32(),
				Asked:       r.Uint64(),
				First:       r.Uint64(),
				Finish:      word(r),
				Preemptions: r.Uint32(),
			}
		}),
		Pressure: several(r, func() recording.Pressure {
			p := recording.Pressure{TS: r.Uint64(), Throttled: r.Uint64(), GPUNode: -1}
			if r.IntN(2) == 0 {
				p.RemotePages = map[string]uint64{"0": r.Uint64(), "1": 0}
			}
			return p
		}),
	}
	if r.IntN(2) == 0 {
		m.Overhead = &recording.Overhead{
			Target: r.Uint32(), Budget: 0.02,
			Total: recording.Cost{Share: r.Float64(), Low: -r.Float64(), Basis: word(r)}, State: word(r),
			Sources: several(r, func() recording.OverheadSource {
				return recording.OverheadSource{
					Name:   word(r),
					Level:  word(r),
					Shares: []recording.LevelShare{{Level: word(r), Share: 1}},
				}
			}),
		}
	}
	if r.IntN(2) == 0 {
		m.Host.NodeOf = []int{0, -1, 1}
		m.Host.GPUs = []recording.HostGPU{{UUID: word(r), Bus: word(r), Node: -1}}
		m.RAS = &recording.RAS{At: r.Uint64(), Communicators: []recording.RASCommunicator{{
			Hash: word(r), Ranks: []recording.RASRank{{Rank: 1, Counts: map[string]uint64{"AllReduce": r.Uint64()}}},
		}}}
	}
	if r.IntN(4) > 0 {
		m.GPU = randomGPU(r)
	}
	return m
}

func randomGPU(r *rand.Rand) *recording.GPU {
	return &recording.GPU{
		Mode: word(r),
		Agents: several(
			r,
			func() recording.Agent { return recording.Agent{PID: r.Uint32(), State: word(r), Joined: r.Uint64()} },
		),
		Windows: several(r, func() recording.GPUWindow {
			return recording.GPUWindow{PID: r.Uint32(), From: r.Uint64(), Activity: r.IntN(2) == 0}
		}),
		Devices: several(
			r,
			func() recording.Device { return recording.Device{ID: r.Uint32(), Name: word(r), Memory: r.Uint64()} },
		),
		Streams:    several(r, func() recording.Stream { return recording.Stream{ID: r.Uint32(), Priority: -5} }),
		Kernels:    several(r, func() recording.Kernel { return recording.Kernel{Name: word(r), Local: r.Uint32()} }),
		Ranges:     several(r, func() string { return word(r) }),
		Attributes: several(r, func() string { return word(r) }),
	}
}

// TestTableOfOtherThreads reads it by the name that it had.
func TestTableOfOtherThreads(t *testing.T) {
	want := random(rand.New(rand.NewPCG(5, 5)), 10)
	want.Meta.OtherThreads = []recording.Thread{{PID: 1, TID: 2, Name: "kswapd0"}}
	dir := filepath.Join(t.TempDir(), "a.isc")
	must.NoError(t, archive.Write(dir, want, nil))
	must.NoError(t, os.Rename(filepath.Join(dir, "other_threads"), filepath.Join(dir, "strangers")))
	manifest := filepath.Join(dir, "manifest.json")
	text, err := os.ReadFile(manifest)
	must.NoError(t, err)
	text = bytes.ReplaceAll(text, []byte("other_threads"), []byte("strangers"))
	must.NoError(t, os.WriteFile(manifest, text, 0o600))
	got, err := archive.Read(dir, archive.DefaultLimits())
	must.NoError(t, err)
	if !slices.Equal(got.Meta.OtherThreads, want.Meta.OtherThreads) {
		t.Errorf("%+v, want %+v", got.Meta.OtherThreads, want.Meta.OtherThreads)
	}
}

// TestWhatIsReadIsWhatWasWritten holds it of random recordings, in a folder, packed, and unpacked.
func TestWhatIsReadIsWhatWasWritten(t *testing.T) {
	for seed := range uint64(16) {
		r := rand.New(rand.NewPCG(seed, 8))
		want := random(r, r.IntN(3000))
		dir := t.TempDir()
		folder, zip, again := filepath.Join(dir, "a.isc"), filepath.Join(dir, "a.isc.zip"), filepath.Join(dir, "b.isc")
		if err := archive.Write(folder, want, nil); err != nil {
			t.Fatal(seed, err)
		}
		if err := archive.Pack(folder, zip, false); err != nil {
			t.Fatal(seed, err)
		}
		if err := archive.Unpack(zip, again); err != nil {
			t.Fatal(seed, err)
		}
		for _, place := range []string{folder, zip, again} {
			got, err := archive.Read(place, archive.DefaultLimits())
			if err != nil {
				t.Fatal(seed, err)
			}
			if diff := cmp.Diff(want.Meta, got.Meta); diff != "" {
				t.Fatalf("seed %d, %s: meta (-want +got):\n%s", seed, filepath.Base(place), diff)
			}
			if !slices.Equal(want.Events, got.Events) {
				t.Fatalf("seed %d, %s: %d events became %d others",
					seed, filepath.Base(place), len(want.Events), len(got.Events))
			}
		}
		if in, err := archive.Inspect(again, true); err != nil ||
			len(in.Unfinished)+len(in.Unknown)+len(in.Missing)+len(in.Damaged) > 0 {
			t.Fatalf("seed %d: %+v, %v", seed, in, err)
		}
		_ = os.RemoveAll(dir)
	}
}

// A damaged recording is not packed: the file would hide it until somebody reads it elsewhere.
func TestPackVerifies(t *testing.T) {
	for name, harm := range map[string]func(file string, data []byte) error{
		"cut off": func(file string, data []byte) error { return os.WriteFile(file, data[:len(data)/2], 0o600) },
		"missing": func(file string, _ []byte) error { return os.Remove(file) },
		"changed": func(file string, data []byte) error {
			data[len(data)/2] ^= 1
			return os.WriteFile(file, data, 0o600)
		},
	} {
		dir := small(t)
		files, err := filepath.Glob(filepath.Join(dir, "samples", "*"))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		data, err := os.ReadFile(files[0])
		if err == nil {
			err = harm(files[0], data)
		}
		if err != nil {
			t.Fatal(err)
		}
		place := filepath.Join(t.TempDir(), "a.isc.zip")
		if err := archive.Pack(dir, place, false); err == nil {
			t.Errorf("%s: it was packed", name)
		}
		if _, err := os.Stat(place); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: a file was left: %v", name, err)
		}
	}
}
