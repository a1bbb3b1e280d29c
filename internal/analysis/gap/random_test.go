package gap

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

func TestRandomProgramsTile(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			c := timelinetest.Config{
				Seed:   seed,
				Agent:  seed%3 != 0,
				Both:   seed%2 == 0,
				Length: 20 * timelinetest.Millisecond,
			}
			if seed%4 == 1 {
				c.LoseCalls, c.LoseRecords, c.Burst = 0.1, 0.1, 20
			}
			if seed%5 == 2 {
				c.Windows = []timelinetest.Span{
					timelinetest.Between(2_000_000, 7_000_000),
					timelinetest.Between(11_000_000, 16_000_000),
				}
			}
			if seed%7 == 3 {
				c.Skew = int64(seed) * 10_000
			}
			tl := timeline.Build(timelinetest.Random(c).Run())
			w := checked(t, tl)
			if len(w.Gaps) == 0 {
				t.Skip("no gaps")
			}
		})
	}
}

// chaos is a recording whose events and tables hold anything: what a damaged file or a hostile target can say.
func chaos(rng *rand.Rand) *recording.Recording {
	const length = 10_000_000
	s := newScene()
	s.Window(start, start+length)
	for range 40 {
		s.Meta.Frames = append(s.Meta.Frames, recording.Frame{
			Kind: []recording.FrameKind{
				recording.NativeFrame, recording.PythonFrame, recording.KernelFrame, recording.ErrorFrame,
			}[rng.IntN(4)],
			Name: []string{
				"take_gil", "futex_wait", "pthread_mutex_lock", "f", "gc_collect_main", "tokenize",
			}[rng.IntN(6)],
			File: []string{"", "/x/torch/nn.py", "libcuda.so.1", "python3"}[rng.IntN(4)],
		})
		s.Meta.Stacks = append(s.Meta.Stacks, recording.Node{Parent: rng.Int32N(50) - 5, Frame: rng.Uint32N(45)})
		s.Meta.Pressure = append(s.Meta.Pressure,
			recording.Pressure{TS: start + rng.Uint64N(2*length), Throttled: rng.Uint64N(length)})
		s.Meta.Objects = append(s.Meta.Objects, recording.Object{
			PID:   leader,
			Inode: rng.Uint64N(8),
			Name:  "socket:[1]",
			Role: []recording.Role{
				recording.Listening, recording.Accepted, recording.Connected, recording.Unclear, "", "?",
			}[rng.IntN(6)],
		})
	}
	names := []string{
		"cuLaunchKernel", "cuStreamSynchronize", "cuMemAlloc_v2", "cuMemcpyHtoD_v2", "cuMemcpyDtoHAsync_v2",
		"cuModuleLoadData", "cuGraphLaunch", "cuEventRecord", "cuStreamWaitEvent", "cuLaunchHostFunc",
	}
	for _, n := range names {
		s.Fn(n)
	}
	s.Meta.GPU.Windows = append(s.Meta.GPU.Windows, recording.GPUWindow{
		PID:      helper,
		From:     start + rng.Uint64N(length),
		To:       start + rng.Uint64N(length),
		Activity: true,
		Dropped:  rng.Uint64N(2),
	})
	for range 3000 {
		e := event.Event{
			TS:    start + rng.Uint64N(length),
			Dur:   rng.Uint64N(1 << rng.IntN(24)),
			PID:   leader + rng.Uint32N(2)*rng.Uint32N(2),
			TID:   leader + rng.Uint32N(4),
			Func:  uint16(rng.IntN(len(names) + 1)),
			Kind:  event.Kind(rng.IntN(int(event.Range) + 2)),
			Flags: event.Flags(rng.Uint32()),
			Ret:   rng.Int32N(2000),
			Args: [4]uint64{
				rng.Uint64N(2000),
				uint64(leader)<<32 | leader + rng.Uint64N(4),
				rng.Uint64N(64),
				rng.Uint64(),
			},
		}
		if e.Kind == event.Sample {
			e.Func %= 2
			e.Args[0] %= 45
		}
		if rng.IntN(200) == 0 {
			e.TS, e.Dur = rng.Uint64(), rng.Uint64()
		}
		s.Event(e)
	}
	return s.Recording()
}

func TestChaosTiles(t *testing.T) {
	gaps := 0
	for seed := range uint64(60) {
		rec := chaos(rand.New(rand.NewPCG(seed, 5)))
		w := Build(timeline.Build(rec))
		if err := check(timeline.Build(rec), w); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		gaps += len(w.Gaps)
	}
	if gaps == 0 {
		t.Error("no recording has a gap")
	}
}

// TestPlainGaps: a gap that is said to be plain has the one step that is made of it again, where its steps are made all
// the same.
func TestPlainGaps(t *testing.T) {
	plain := 0
	for seed := range uint64(60) {
		tl := timeline.Build(chaos(rand.New(rand.NewPCG(seed, 5))))
		if seed%2 == 0 {
			tl = timeline.Build(timelinetest.Random(timelinetest.Config{
				Seed: seed, Agent: true, Both: seed%4 == 0, Length: 20 * timelinetest.Millisecond,
			}).Run())
		}
		w := newWalker(tl, tl.Index.Threads())
		find(tl, Covered(tl), func(g *Gap) bool {
			w.floor, w.chain, w.first, w.out.Steps = Seen, w.chain[:0], 0, w.out.Steps[:0]
			th, op, act := w.launcher(g)
			if th == nil || op == None || !w.plain(g, th, op, act) {
				return true
			}
			plain++
			w.launched(g, th, op, act)
			if len(w.out.Steps) != 1 || w.out.Steps[0] != plainStep(g, th.pid, th.tid, op) {
				t.Errorf("seed %d: gap %+v is plain, and has the steps %+v", seed, *g, w.out.Steps)
			}
			return !t.Failed()
		})
	}
	if plain < 1000 {
		t.Errorf("%d gaps are plain, want many", plain)
	}
}

// TestSameEachTime: a walk is a function of its recording.
func TestSameEachTime(t *testing.T) {
	rec := chaos(rand.New(rand.NewPCG(1, 5)))
	first := Build(timeline.Build(rec))
	for range 3 {
		if again := Build(timeline.Build(rec)); !slices.Equal(first.Steps, again.Steps) ||
			!slices.Equal(first.Gaps, again.Gaps) {
			t.Fatal("two walks of one recording differ")
		}
	}
}
