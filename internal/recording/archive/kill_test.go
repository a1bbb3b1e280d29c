package archive_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// writerEnv makes this test binary a writer that never ends; its value is the folder.
const writerEnv = "ISC_TEST_WRITER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(writerEnv); dir != "" {
		endless(dir)
	}
	os.Exit(m.Run())
}

const second = 1_000_000_000

// stretchOf is second n of an endless recording, with the second before it once more: 100 kernels each second, a name
// of their own for each tenth, a sample each, and a thread that still sleeps at the end.
func stretchOf(n uint64) *recording.Recording {
	b := recordtest.New()
	begin := uint64(10 * second)
	from := begin + (max(n, 1)-1)*second
	b.Window(from, begin+(n+1)*second)
	b.Meta.GPU = &recording.GPU{
		Mode:   "continuous",
		Agents: []recording.Agent{},
		Windows: []recording.GPUWindow{
			{PID: recordtest.PID, From: from, To: begin + (n+1)*second, Activity: true, End: "open"},
		},
	}
	b.Function(recording.Function{Name: "cuInit"})
	for i := (max(n, 1) - 1) * 100; i < (n+1)*100; i++ {
		name := recording.Kernel{Name: "kernel" + string(rune('a'+i/10%26))}
		at := slices.Index(b.Meta.GPU.Kernels, name)
		if at < 0 {
			at = len(b.Meta.GPU.Kernels)
			b.Meta.GPU.Kernels = append(b.Meta.GPU.Kernels, name)
		}
		ts := begin + i*second/100
		b.Event(event.Event{
			TS:    ts,
			Dur:   5,
			PID:   recordtest.PID,
			TID:   7,
			Kind:  event.Kernel,
			Flags: event.Timed,
			Ret:   int32(at) + 1,
			Args:  [4]uint64{i},
		})
		b.Sample(1, ts, b.Stack(recordtest.Native(name.Name, "x"), recordtest.Native("main", "x")), event.Whole)
	}
	b.Event(event.Event{
		TS:    begin + n*second,
		Dur:   second,
		PID:   recordtest.PID,
		TID:   9,
		Kind:  event.OffCPU,
		Flags: event.Timed | event.Open,
	})
	return b.Recording()
}

func endless(dir string) {
	w, err := archive.Create(dir, false)
	for n := uint64(0); err == nil; n++ {
		err = w.Append(stretchOf(n))
	}
	panic(err)
}

// check holds that a recording of stretches has every event once, in order, under its name.
func check(t *testing.T, rec *recording.Recording, stretches int) {
	t.Helper()
	kernels, samples, open := 0, 0, 0
	for _, e := range rec.Events {
		switch e.Kind {
		case event.Kernel:
			if e.Args[0] != uint64(kernels) {
				t.Fatalf("kernel %d where %d should be", e.Args[0], kernels)
			}
			if got, want := rec.Meta.GPU.Kernels[e.Ret-1].Name, "kernel"+string(rune('a'+kernels/10%26)); got != want {
				t.Fatalf("kernel %d is called %s instead of %s", kernels, got, want)
			}
			kernels++
		case event.Sample:
			leaf := rec.Meta.Frames[rec.Meta.Stacks[e.Args[0]-1].Frame].Name
			if want := "kernel" + string(rune('a'+samples/10%26)); leaf != want {
				t.Fatalf("sample %d is in %s instead of %s", samples, leaf, want)
			}
			samples++
		case event.OffCPU:
			open++
			if e.TS != uint64(10*second+(stretches-1)*second) {
				t.Errorf("the thread that slept at the end did since %d", e.TS)
			}
		}
	}
	if kernels != 100*stretches || samples != 100*stretches || open != 1 {
		t.Errorf("%d kernels, %d samples and %d open states in %d stretches", kernels, samples, open, stretches)
	}
	if w := rec.Meta.GPU.Windows; len(w) != 1 || w[0].From != rec.Meta.From || w[0].To != rec.Meta.To {
		t.Errorf("windows %+v in [%d, %d]", w, rec.Meta.From, rec.Meta.To)
	}
}

func TestStretchesBecomeOne(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a.isc")
	w, err := archive.Create(dir, false)
	must.NoError(t, err)
	for n := range uint64(4) {
		must.NoError(t, w.Append(stretchOf(n)))
	}
	must.NoError(t, w.Finish(&archive.Clock{Error: 5, Pairs: 7}))
	rec, err := archive.Read(dir, archive.DefaultLimits())
	must.NoError(t, err)
	check(t, rec, 4)
	if in, err := archive.Inspect(dir, true); err != nil || in.Manifest.State != archive.Complete ||
		len(in.Unfinished)+len(in.Damaged) > 0 {
		t.Errorf("%+v, %v", in, err)
	}
}

// TestKilledWriter kills a writer at random instants: what its manifest lists is a valid recording.
func TestKilledWriter(t *testing.T) {
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	whole, unfinished := 0, 0
	for range 12 {
		dir := filepath.Join(t.TempDir(), "a.isc")
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), writerEnv+"="+dir)
		must.NoError(t, cmd.Start())
		time.Sleep(time.Duration(20+r.IntN(1500)) * time.Millisecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal("the writer ended by itself:", err)
		}
		_ = cmd.Wait()
		rec, err := archive.Read(dir, archive.DefaultLimits())
		if errors.Is(err, archive.ErrEmpty) || errors.Is(err, os.ErrNotExist) {
			continue
		}
		must.NoError(t, err)
		in, err := archive.Inspect(dir, true)
		if err != nil || in.Manifest.State != archive.Writing || len(in.Missing)+len(in.Damaged) > 0 {
			t.Fatalf("%+v, %v", in, err)
		}
		check(t, rec, len(in.Manifest.Stretches))
		whole += len(in.Manifest.Stretches)
		unfinished += len(in.Unfinished)
	}
	t.Logf("%d stretches were whole, %d files were lost", whole, unfinished)
	if whole == 0 {
		t.Error("no writer lived long enough to write anything: the machine is too slow for this test")
	}
}
