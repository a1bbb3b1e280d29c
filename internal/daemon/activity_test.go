package daemon

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// fakeActivity feeds events and names what they refer to.
type fakeActivity struct {
	fakeSource
	amu     sync.Mutex
	pending []event.Event // fed after the next Flush
	flushed []uint32
	ready   bool
	asked   [2][]int32
	stays   bool     // its agents do
	awaited []uint32 // whose agents were
}

func (a *fakeActivity) Feed(_ uint64, emit func([]event.Event)) {
	a.amu.Lock()
	defer a.amu.Unlock()
	if a.ready && len(a.pending) > 0 {
		emit(a.pending)
		a.pending = nil
	}
}

func (a *fakeActivity) Fill() float64 { return 0.5 }

func (a *fakeActivity) Flush(_ context.Context, pids []uint32) {
	a.amu.Lock()
	defer a.amu.Unlock()
	a.flushed, a.ready = pids, true
}

func (a *fakeActivity) Departed(_ context.Context, pids []uint32) bool {
	a.amu.Lock()
	defer a.amu.Unlock()
	a.awaited = pids
	return !a.stays
}

func (a *fakeActivity) GPU(
	root uint32,
	pids []uint32,
	from, to uint64,
	kernels, ranges []int32,
) (*recording.GPU, map[int32]int32, map[int32]int32) {
	a.amu.Lock()
	defer a.amu.Unlock()
	a.asked = [2][]int32{kernels, ranges}
	g := &recording.GPU{Mode: "windows", Kernels: []recording.Kernel{{Name: "gemm"}}, Ranges: []string{"step"}}
	for _, pid := range pids {
		g.Agents = append(g.Agents, recording.Agent{PID: pid, State: "running"})
		g.Windows = append(g.Windows, recording.GPUWindow{PID: root, From: from, To: to, Activity: true})
	}
	return g, map[int32]int32{40: 1}, map[int32]int32{50: 1}
}

func (a *fakeActivity) Continuous(context.Context, uint32) (func(), error) { return func() {}, nil }
func (a *fakeActivity) Agents() []recording.AgentStatus {
	return []recording.AgentStatus{{Agent: recording.Agent{PID: 10, State: "running"}, Kernels: 7}}
}

// TestRecordingHoldsGPUActivity: what agents hold is asked for before a recording is cut, comes
// in although it is about the past, and refers to the recording's own tables.
func TestRecordingHoldsGPUActivity(t *testing.T) {
	w := newWorld(t)
	a := &fakeActivity{fakeSource: fakeSource{name: "gpu"}}
	a.pending = []event.Event{
		{TS: 1009 * second, PID: 10, Kind: event.Call, Ret: 40},
		{TS: 1005 * second, Dur: 10, PID: 10, Kind: event.Kernel, Ret: 40},
		{TS: 1006 * second, Dur: 10, PID: 10, Kind: event.Kernel, Ret: 41}, // has no name any more
		{TS: 1007 * second, Dur: 10, PID: 10, Kind: event.Range, Ret: 50},
		{TS: 1008 * second, Dur: 10, PID: 20, Kind: event.Kernel, Ret: 60}, // of another target
	}
	w.parts.Sources = append(w.parts.Sources, a)
	d, _ := w.start(Options{}, process(10, 0, second), process(11, 10, second), process(20, 0, second))
	w.now.Store(1010 * second)
	for range 2 {
		rec := fetch(t, d, 10, 0, 0)
		if !slices.Equal(a.flushed, []uint32{10, 11}) {
			t.Errorf("flushed were %v, want the target's processes", a.flushed)
		}
		var got []int32
		for _, e := range rec.Events {
			got = append(got, e.Ret)
		}
		if want := []int32{1, 0, 1, 40}; !slices.Equal(got, want) {
			t.Errorf("Ret are %v in the order of time, want %v", got, want)
		}
		if !slices.Equal(a.asked[0], []int32{40, 41}) || !slices.Equal(a.asked[1], []int32{50}) {
			t.Errorf("asked for the names of %v", a.asked)
		}
		g := rec.Meta.GPU
		if g == nil || len(g.Agents) != 2 || g.Windows[0].From != rec.Meta.From || g.Windows[0].To != rec.Meta.To {
			t.Errorf("meta is %+v", g)
		}
	}
	if st := d.Status(); len(st.Agents) != 1 || st.Agents[0].Kernels != 7 {
		t.Errorf("status tells of agents %+v", st.Agents)
	}
	if d.drainer.fill() != 0.5 {
		t.Error("the drain does not look at how full the agents' rings are")
	}
}

func TestContinuousWithoutASource(t *testing.T) {
	w := newWorld(t)
	d, _ := w.start(Options{}, process(10, 0, second))
	if _, err := d.Continuous(t.Context(), 10); err == nil {
		t.Error("a daemon without GPU activity records all of it")
	}
	if rec := fetch(t, d, 10, 0, 0); rec.Meta.GPU != nil {
		t.Errorf("its recording has %+v", rec.Meta.GPU)
	}
}

func TestOnlyOneSourceTellsOfGPUs(t *testing.T) {
	w := newWorld(t)
	w.parts.Sources = append(w.parts.Sources, &fakeActivity{fakeSource: fakeSource{name: "a"}},
		&fakeActivity{fakeSource: fakeSource{name: "b"}})
	if _, err := New(Options{}, w.parts); err == nil {
		t.Error("two sources that number kernels were taken")
	}
}
