package gpu_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/analysis/summary/gpu"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

// peer is a copy from one GPU to another, which the source runs.
func (h *hand) peer(from, to uint64, at, dur, bytes uint64) {
	h.Event(event.Event{
		TS: calltest.Start + at, Dur: dur, PID: recordtest.PID, TID: 20 + uint32(at/ms), Func: uint16(from) | 1<<8,
		Kind: event.Copy, Flags: event.Timed, Ret: 10 | 3<<8 | 3<<16 | 1<<24,
		Args: [4]uint64{0, 0, bytes, from | to<<32},
	})
}

// TestCopiesBetweenGPUs: each direction is a pair of its own, times are unions, and what runs beside a kernel of either
// end is not alone.
func TestCopiesBetweenGPUs(t *testing.T) {
	h := newHand(timelinetest.Span{From: 0, To: 100 * ms})
	h.peer(0, 1, 10*ms, 4*ms, 1000)
	h.peer(0, 1, 12*ms, 4*ms, 2000) // beside the one before
	h.peer(1, 0, 30*ms, 2*ms, 500)
	h.kernel(7, 1, 15*ms, 10*ms, 0)    // on GPU 0
	h.copy(8, 1|1<<8|3<<16, 0, ms, 64) // from the host
	want := []gpu.Peer{
		{
			PID: recordtest.PID, Source: 0, Destination: 1, Count: 2, Bytes: 3000, Time: 6 * ms, Longest: 4 * ms,
			Bandwidth: 500_000, Alone: 5 * ms,
		},
		{
			PID: recordtest.PID, Source: 1, Destination: 0, Count: 1, Bytes: 500, Time: 2 * ms, Longest: 2 * ms,
			Bandwidth: 250_000, Alone: 2 * ms,
		},
	}
	if diff := cmp.Diff(want, h.summary(t).Peers); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
