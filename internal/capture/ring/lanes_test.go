package ring

import (
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// laned makes rings with lanes.
func laned(t *testing.T) *Rings {
	t.Helper()
	r := newRings(t, minBytes)
	if _, err := r.Lanes(); err != nil {
		t.Fatal(err)
	}
	return r
}

// write does what the programs do: n events with TS from base on, as far as there is room.
func (l *lanes) write(cpu int, base, n uint64) (written uint64) {
	lane := l.mem[cpu*laneSize:]
	head, tail := (*uint64)(unsafe.Pointer(&lane[laneHead])), (*uint64)(unsafe.Pointer(&lane[laneTail]))
	for written < n && *head-atomic.LoadUint64(tail) < laneEvents {
		at := laneFirst + int(*head%laneEvents)*event.Size
		*(*event.Event)(unsafe.Pointer(&lane[at])) = event.Event{TS: base + written, TID: uint32(cpu)}
		atomic.AddUint64(head, 1)
		written++
	}
	return written
}

// TestLanesHandOverWhatWasWritten goes round lanes of two CPUs several times, up to full ones, in pieces that do not
// divide them.
func TestLanesHandOverWhatWasWritten(t *testing.T) {
	r := laned(t)
	cpus := min(2, int(r.outer.MaxEntries()))
	next := make([]uint64, cpus)
	sent := make([]uint64, cpus)
	for round := range uint64(50) {
		for cpu := range cpus {
			sent[cpu] += r.lanes.write(cpu, sent[cpu], round*37%(laneEvents+100))
		}
		for _, e := range drainAll(t, r) {
			if e.TS != next[e.TID] {
				t.Fatalf("CPU %d: event %d, want %d", e.TID, e.TS, next[e.TID])
			}
			next[e.TID]++
		}
		for cpu := range cpus {
			if next[cpu] != sent[cpu] {
				t.Fatalf("CPU %d: %d of %d events arrived", cpu, next[cpu], sent[cpu])
			}
		}
	}
	if n := total(t, r, loss.Malformed); n != 0 {
		t.Errorf("%d lanes given up", n)
	}
}

// TestFullLane: what does not fit is left to the ring, and there is room again once it is read.
func TestFullLane(t *testing.T) {
	r := laned(t)
	if n := r.lanes.write(0, 0, 2*laneEvents); n != laneEvents {
		t.Errorf("a lane took %d events", n)
	}
	if n := len(drainAll(t, r)); n != laneEvents {
		t.Errorf("%d events of a full lane arrived", n)
	}
	if f := r.Fill(); f != 0 {
		t.Errorf("a full lane counts as a ring that is full to %v", f)
	}
	if n := r.lanes.write(0, 0, 1); n != 1 || len(drainAll(t, r)) != 1 {
		t.Error("there is no room in a lane that was read")
	}
}

// TestLaneWithNonsense: counters that cannot be are a loss, and the lane goes on.
func TestLaneWithNonsense(t *testing.T) {
	r := laned(t)
	*(*uint64)(unsafe.Pointer(&r.lanes.mem[laneHead])) = laneEvents + 1
	if n := len(drainAll(t, r)); n != 0 {
		t.Errorf("%d events of nonsense", n)
	}
	if n := total(t, r, loss.Malformed); n != 1 {
		t.Errorf("%d losses counted", n)
	}
	if n := r.lanes.write(0, 0, 5); n != 5 || len(drainAll(t, r)) != 5 {
		t.Error("the lane does not go on")
	}
}

func TestLanesAfterClose(t *testing.T) {
	r := laned(t)
	before := r.Bytes()
	must.NoError(t, r.Close())
	if _, err := r.Lanes(); err == nil {
		t.Error("rings that are closed have lanes")
	}
	if plain := newRings(t, minBytes).Bytes(); before-plain < laneSize {
		t.Errorf("lanes count for %d bytes", before-plain)
	}
}
