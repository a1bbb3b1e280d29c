package ring

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// drainAll collects what one Drain hands over.
func drainAll(t *testing.T, r *Rings) []event.Event {
	t.Helper()
	var all []event.Event
	n := r.Drain(func(batch []event.Event) {
		if len(batch) == 0 || len(batch) > batchEvents {
			t.Errorf("a batch of %d events", len(batch))
		}
		all = append(all, batch...)
	})
	if n != len(all) {
		t.Errorf("Drain returned %d for %d events", n, len(all))
	}
	return all
}

func TestEventsArriveWholeAndInOrder(t *testing.T) {
	r := newRings(t, 2*minBytes)
	p := newProducer(t, r)
	for cpu := range r.outer.MaxEntries() {
		p.run(t, order{slot: uint64(cpu), base: 1000 * uint64(cpu), n: 600})
	}
	next := map[uint32]uint64{}
	for _, e := range drainAll(t, r) {
		cpu := e.TID
		want := event.Event{
			TS: 1000*uint64(cpu) + next[cpu], Dur: 7, PID: 100, TID: cpu, Func: 1, Kind: event.Call,
			Flags: event.Timed, Ret: -3, Args: [4]uint64{1000*uint64(cpu) + next[cpu], 1, 2, 3},
		}
		if e != want {
			t.Fatalf("got %+v, want %+v", e, want)
		}
		next[cpu]++
	}
	for cpu := range r.outer.MaxEntries() {
		if next[cpu] != 600 {
			t.Errorf("CPU %d: %d of 600 events arrived", cpu, next[cpu])
		}
	}
	if left := drainAll(t, r); len(left) != 0 {
		t.Errorf("%d events came twice", len(left))
	}
}

// TestWrap sends several times the ring's size through it in pieces that do not
// divide it, so that records lie across its end.
func TestWrap(t *testing.T) {
	r := newRings(t, minBytes)
	p := newProducer(t, r)
	next := uint64(0)
	for range 40 {
		p.run(t, order{base: next, n: 997})
		for _, e := range drainAll(t, r) {
			if e.TS != next || e.Args[0] != next {
				t.Fatalf("event %d has TS %d, Args[0] %d", next, e.TS, e.Args[0])
			}
			next++
		}
	}
	if next != 40*997 {
		t.Errorf("%d of %d events arrived", next, 40*997)
	}
}

func TestFullRingLosesNewEventsAndCountsThem(t *testing.T) {
	r := newRings(t, minBytes)
	p := newProducer(t, r)
	const sent = 10_000
	p.run(t, order{n: sent})
	fits := int(r.size / 72)
	got := drainAll(t, r)
	if len(got) != fits {
		t.Errorf("%d events arrived, the ring holds %d", len(got), fits)
	}
	for i, e := range got {
		if e.TS != uint64(i) {
			t.Fatalf("event %d has TS %d: the oldest must survive", i, e.TS)
		}
	}
	if f := r.Fill(); f < 0.99 || f > 1 {
		t.Errorf("Fill() = %v after a full ring", f)
	}
	if n := total(t, r, loss.RingFull); n != sent-uint64(fits) {
		t.Errorf("%d losses counted, want %d", n, sent-fits)
	}
	drainAll(t, r)
	if f := r.Fill(); f != 0 {
		t.Errorf("Fill() = %v of an empty ring", f)
	}
}

func total(t *testing.T, r *Rings, reason loss.Reason) (n uint64) {
	t.Helper()
	all, err := r.Losses()
	must.NoError(t, err)
	for _, l := range all {
		if l.Reason == reason {
			n += l.Count
		}
	}
	return n
}

func TestDiscardedRecordsAreSkipped(t *testing.T) {
	r := newRings(t, minBytes)
	p := newProducer(t, r)
	p.run(t, order{base: 0, n: 3})
	p.run(t, order{base: 100, n: 3, discard: 1})
	p.run(t, order{base: 200, n: 3})
	var ts []uint64
	for _, e := range drainAll(t, r) {
		ts = append(ts, e.TS)
	}
	if want := []uint64{0, 1, 2, 200, 201, 202}; !slices.Equal(ts, want) {
		t.Errorf("got %v, want %v", ts, want)
	}
	if n := total(t, r, loss.Malformed); n != 0 {
		t.Errorf("%d discarded records counted as malformed", n)
	}
}

func TestLossesNameCPUAndReason(t *testing.T) {
	r := newRings(t, minBytes)
	cpus, err := ebpf.PossibleCPU()
	must.NoError(t, err)
	for i := range reasons() {
		counts := make([]uint64, cpus)
		counts[cpus-1] = uint64(10 + i)
		must.NoError(t, r.losses.Put(uint32(i), counts))
	}
	got, err := r.Losses()
	must.NoError(t, err)
	where := cpuName(cpus - 1)
	want := []loss.Loss{
		{Reason: loss.RingFull, Count: 10, CPU: loss.CPUOf(cpus - 1), Where: where},
		{Reason: loss.CallDepth, Count: 11, CPU: loss.CPUOf(cpus - 1), Where: where},
		{Reason: loss.ThreadStorage, Count: 12, CPU: loss.CPUOf(cpus - 1), Where: where},
		{Reason: loss.ReturnOnly, Count: 13, CPU: loss.CPUOf(cpus - 1), Where: where},
		{Reason: loss.CallsSkipped, Count: 14, CPU: loss.CPUOf(cpus - 1), Where: where},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestBytesEqualsTheKernelsCount compares with what the kernel accounts
// (ringbuf_map_mem_usage, kernel 6.4 on).
func TestBytesEqualsTheKernelsCount(t *testing.T) {
	r := newRings(t, 2*goodRing)
	var kernel int64
	for _, m := range r.inner {
		info, err := m.Info()
		must.NoError(t, err)
		n, ok := info.Memlock()
		if !ok {
			t.Skip("this kernel does not say how much memory a ring buffer takes")
		}
		kernel += int64(n)
	}
	// The kernel also counts struct bpf_ringbuf_map.
	if diff := kernel - r.Bytes(); diff < 0 || diff > 1024*int64(len(r.inner)) {
		t.Errorf("Bytes() = %d, the kernel says %d", r.Bytes(), kernel)
	}
}

// TestDrainMeetsProducer drains while a program on another thread fills, never by
// more than fits: every event arrives, once, in order.
func TestDrainMeetsProducer(t *testing.T) {
	r := newRings(t, minBytes)
	p := newProducer(t, r)
	const sent, each = 500_000, 500
	room := r.size/72 - each
	var arrived atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := int64(0); i < sent; i += each {
			for i-arrived.Load() > room && !t.Failed() {
				runtime.Gosched()
			}
			p.run(t, order{base: uint64(i), n: each})
		}
	})
	for arrived.Load() < sent && !t.Failed() {
		for _, e := range drainAll(t, r) {
			if e.TS != uint64(arrived.Load()) {
				t.Errorf("event %d has TS %d", arrived.Load(), e.TS)
				break
			}
			arrived.Add(1)
		}
	}
	wg.Wait()
	if n := total(t, r, loss.RingFull); n != 0 {
		t.Errorf("%d events lost", n)
	}
}

func TestCloseTwiceAndDrainAfter(t *testing.T) {
	r := newRings(t, minBytes)
	if err := errors.Join(r.Close(), r.Close()); err != nil {
		t.Error(err)
	}
	if n := r.Drain(func([]event.Event) { t.Error("an event after Close") }); n != 0 {
		t.Errorf("Drain after Close returned %d", n)
	}
	if _, err := r.Losses(); err == nil {
		t.Error("Losses after Close knows something")
	}
}

func TestRefusalNamesTheCapability(t *testing.T) {
	if code := clierror.CodeOf(explain(unix.EPERM)); code != clierror.Permission {
		t.Errorf("EPERM gives exit code %d, want %d", code, clierror.Permission)
	}
	if err := explain(unix.ENOMEM); !errors.Is(err, unix.ENOMEM) || clierror.CodeOf(err) != clierror.General {
		t.Errorf("ENOMEM becomes %v", err)
	}
}
