package timeline_test

import (
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// engine is a recording of copies, made by hand. Each takes a place in the order of time, 1 µs after the one before.
type engine struct {
	*calltest.Builder
	id uint32
}

const (
	ownStream, otherStream = 0x5500, 0x6600
	toDevice, within       = 1, 8 // CUpti_ActivityMemcpyKind
)

// ids are CUPTI's of the streams.
func ids(stream uint64) uint32 { return map[uint64]uint32{ownStream: 13, otherStream: 14}[stream] + 7 }

func (g *engine) nccl(name string, from, to int64, stream uint64) {
	g.Do(name, from*1000, uint64(to-from)*1000, 16, 0xc0, 0, stream|7<<56)
}

// copy is a copy whose call begins at a time, µs; unseen: the call was not recorded.
func (g *engine) copy(tid uint32, at int64, stream uint64, kind int32, unseen bool) {
	g.id++
	if !unseen {
		g.Event(event.Event{
			TS: uint64(calltest.Start + at*1000), Dur: 500, PID: g.PID, TID: tid, Func: g.Fn("cuMemcpyDtoDAsync_v2"),
			Kind: event.Call, Flags: event.Correlated | event.Timed, Ret: int32(g.id), Args: [4]uint64{1, 2, 4, stream},
		})
	}
	g.ran(event.Copy, at, stream, kind)
}

func (g *engine) ran(what event.Kind, at int64, stream uint64, kind int32) {
	g.Event(event.Event{
		TS: uint64(calltest.Start + 100_000 + at*1000), Dur: 900, PID: g.PID, TID: ids(stream), Func: 1 << 8,
		Kind: what, Flags: event.Timed, Ret: kind, Args: [4]uint64{uint64(g.id), 0, 4},
	})
}

// TestExchanges: a copy is NCCL's where its call lies within one of NCCL's, or the end of its group, on the same thread
// and stream, or where it lies on the stream between two such of one call.
func TestExchanges(t *testing.T) {
	for name, c := range map[string]struct {
		make func(g *engine)
		want []int // copies, in the order of time
	}{
		"within a call": {func(g *engine) {
			g.copy(g.TID, 5, ownStream, within, false)
			g.nccl("ncclAllGather", 10, 20, ownStream)
			g.copy(g.TID, 11, ownStream, within, false)
			g.copy(g.TID, 12, otherStream, within, false)
			g.copy(g.TID+1, 13, ownStream, within, false)
			g.copy(g.TID, 14, ownStream, toDevice, false)
			g.copy(g.TID, 15, ownStream, within, false)
			g.copy(g.TID, 25, ownStream, within, false)
		}, []int{1, 5}},
		"the default stream": {func(g *engine) {
			g.nccl("ncclAllGather", 10, 20, 1)
			g.copy(g.TID, 11, 0, within, false)
		}, []int{0}},
		"the end of a group": {func(g *engine) {
			g.Do("ncclGroupStart", 1000, 10)
			g.nccl("ncclAllGather", 2, 3, ownStream)
			g.copy(g.TID, 4, ownStream, within, false)
			g.Do("ncclGroupStart", 5000, 10)
			g.nccl("ncclAlltoAll", 6, 7, otherStream)
			g.Do("ncclGroupEnd", 8000, 2000)
			g.copy(g.TID, 9, ownStream, within, false)
			g.Do("ncclGroupEnd", 11_000, 9000)
			g.copy(g.TID, 12, ownStream, within, false)
			g.copy(g.TID, 13, otherStream, within, false)
		}, []int{2, 3}},
		"a group that began before": {func(g *engine) {
			g.nccl("ncclAllGather", 2, 3, ownStream)
			g.Do("ncclGroupEnd", 11_000, 9000)
			g.copy(g.TID, 12, ownStream, within, false)
		}, nil},
		"a batch": {func(g *engine) {
			g.copy(g.TID, 8, ownStream, within, true)
			g.nccl("ncclAllGather", 10, 20, ownStream)
			g.copy(g.TID, 11, ownStream, within, false)
			g.copy(g.TID, 12, ownStream, within, true)
			g.copy(g.TID, 13, ownStream, within, true)
			g.copy(g.TID, 14, otherStream, within, true)
			g.copy(g.TID, 15, ownStream, within, false)
			g.copy(g.TID, 25, ownStream, within, true)
		}, []int{1, 2, 3, 5}},
		"between two calls": {func(g *engine) {
			g.nccl("ncclAllGather", 10, 12, ownStream)
			g.copy(g.TID, 11, ownStream, within, false)
			g.copy(g.TID, 15, ownStream, within, true)
			g.nccl("ncclAllGather", 20, 22, ownStream)
			g.copy(g.TID, 21, ownStream, within, false)
		}, []int{0, 2}},
		"beside a kernel": {func(g *engine) {
			g.nccl("ncclAllGather", 10, 20, ownStream)
			g.copy(g.TID, 11, ownStream, within, false)
			g.copy(g.TID, 12, ownStream, within, true)
			g.ran(event.Kernel, 13, ownStream, 1)
			g.copy(g.TID, 14, ownStream, within, false)
		}, []int{0, 2}},
	} {
		g := &engine{Builder: calltest.New()}
		g.Meta.GPU = &recording.GPU{
			Mode: "continuous", Kernels: []recording.Kernel{{Name: "k"}},
			Agents: []recording.Agent{{PID: recordtest.PID, State: "running"}},
			Windows: []recording.GPUWindow{{
				PID: recordtest.PID, From: calltest.Start, To: calltest.Start + calltest.Second, Activity: true,
				Calls: true, End: "open",
			}},
			Devices: []recording.Device{{PID: recordtest.PID, Name: "GPU"}},
		}
		c.make(g)
		tl := build(t, g.Recording())
		at := func(i int32) uint64 { return tl.Activities[i].Start }
		order := slices.Clone(tl.Copies)
		slices.SortFunc(order, func(x, y int32) int { return int(int64(at(x)) - int64(at(y))) })
		var got []int
		for n, i := range order {
			found := slices.ContainsFunc(tl.Exchanges, func(x timeline.Exchange) bool { return x.Activity == i })
			if found {
				got = append(got, n)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: copies %v are NCCL's, want %v", name, got, c.want)
		}
	}
}
