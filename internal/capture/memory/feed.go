package memory

import (
	"sync"
	"unsafe"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/overhead"
	"github.com/inferscope/inferscope/internal/capture/profile"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// keepEvery is how often the stacks of what is live are said to be wanted still, in ns.
const keepEvery = 5_000_000_000

// feeding is what Feed works with.
type feeding struct {
	mu      sync.Mutex // one pass at a time
	live    map[blockKey]*block
	ready   []event.Event
	held    uint64        // ns since which the recorder holds events
	kept    uint64        // ns, when stacks were looked after
	unfreed uint64        // frees without a record, as of the last look
	spent   overhead.Runs // of processes that are gone
}

// blockKey names a live allocation.
type blockKey struct {
	device  deviceKey
	pointer uint64
}

// block is a sampled allocation that was not freed.
type block struct {
	ts, bytes, mean uint64
	tid             uint32
	stack           uint64
	origin          event.StackOrigin
}

func newFeeding() feeding { return feeding{live: map[blockKey]*block{}} }

// Feed hands over what has come since the last call.
func (s *Source) Feed(held uint64, emit func(batch []event.Event)) {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	s.feed.held = held
	s.take(held)
	if len(s.feed.ready) > 0 {
		emit(s.feed.ready)
		s.feed.ready = s.feed.ready[:0]
	}
	if now := clock.Monotonic(); now-s.feed.kept > keepEvery {
		s.feed.kept = now
		s.keepStacks(now)
	}
}

// take reads the ring. The caller holds the lock.
func (s *Source) take(held uint64) {
	if s.programs.reader == nil {
		return
	}
	s.programs.reader.Read(func(record []byte) { s.record(record, held) })
}

const (
	headBytes  = int(unsafe.Sizeof(bpf.MemoryMemoryRecord{}))
	stackBytes = int(unsafe.Sizeof(bpf.MemoryMemoryStack{}))
)

// record makes of one record what it is.
func (s *Source) record(b []byte, held uint64) {
	if len(b) < headBytes {
		return
	}
	r := (*bpf.MemoryMemoryRecord)(unsafe.Pointer(&b[0])) // records lie at multiples of 8 bytes
	key := blockKey{deviceKey(uint64(r.Pid)<<32 | uint64(r.Device)), r.Pointer}
	switch bpf.MemoryMemoryKind(r.Kind) {
	case bpf.MemoryMemoryKindMEMORY_FREE:
		s.freed(key, r.Ts)
	case bpf.MemoryMemoryKindMEMORY_ALLOCATION:
		s.freed(key, r.Ts) // whose free was not seen
		stack, origin := s.stack(b, held)
		s.feed.live[key] = &block{ts: r.Ts, bytes: r.Bytes, mean: r.Mean, tid: r.Tid, stack: stack, origin: origin}
	case bpf.MemoryMemoryKindMEMORY_EXHAUSTED:
		stack, origin := s.stack(b, held)
		s.feed.ready = append(s.feed.ready, event.Event{
			TS: r.Ts, PID: r.Pid, TID: r.Tid, Func: uint16(r.Device), Kind: event.OutOfMemory, Ret: int32(origin),
			Args: [4]uint64{stack, r.Bytes, r.Allocated, r.Reserved},
		})
	}
}

// stack keeps the stack that follows a record.
func (s *Source) stack(b []byte, held uint64) (uint64, event.StackOrigin) {
	if s.opts.Stacks == nil || len(b) < stackBytes {
		return 0, event.Leaf
	}
	r := (*bpf.MemoryMemoryStack)(unsafe.Pointer(&b[0]))
	at := func(offset, size uintptr) []byte { return b[offset : offset+size : offset+size] }
	return s.opts.Stacks.AddProbeStack(profile.ProbeStack{
		Record:    at(unsafe.Offsetof(r.Python), unsafe.Offsetof(r.Python.Frame)),
		Registers: at(unsafe.Offsetof(r.Regs), unsafe.Sizeof(r.Regs)),
		Stack:     at(unsafe.Offsetof(r.Stack), uintptr(min(r.StackBytes, uint64(len(r.Stack))))),
	}, held)
}

// freed makes the event of an allocation whose free was seen, or must have been.
func (s *Source) freed(key blockKey, at uint64) {
	b := s.feed.live[key]
	if b == nil {
		return
	}
	delete(s.feed.live, key)
	s.feed.ready = append(s.feed.ready, b.event(key, at, 0))
}

func (b *block) event(key blockKey, at uint64, flags event.Flags) event.Event {
	return event.Event{
		TS: b.ts, Dur: at - min(at, b.ts), PID: key.device.pid(), TID: b.tid, Func: key.device.device(),
		Kind: event.Allocation, Flags: event.Timed | flags, Ret: int32(b.origin),
		Args: [4]uint64{b.stack, key.pointer, b.bytes, b.mean},
	}
}

// keepStacks lets the stacks of what is live not make room for others. The caller holds the lock.
func (s *Source) keepStacks(now uint64) {
	if s.opts.Stacks == nil {
		return
	}
	for _, b := range s.feed.live {
		b.stack = s.opts.Stacks.KeepStack(b.stack, now, s.feed.held)
	}
}

// Complete returns how devices stand at the time to (ns), and the sampled allocations that are live then.
func (s *Source) Complete(to uint64) []event.Event {
	off := s.Level() == levelOff
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	if s.programs.reader == nil {
		return nil
	}
	s.take(s.feed.held)
	s.reconcile(to)
	var out []event.Event
	for key, d := range s.programs.devices() {
		if off && key.isDriver() {
			continue // what it holds now is not known
		}
		out = append(out, standing(key, &d, to)...)
	}
	for key, b := range s.feed.live {
		if b.ts <= to {
			out = append(out, b.event(key, to, event.Open))
		}
	}
	return out
}

// standing makes the events that a device would have if it were called just now.
func standing(key deviceKey, d *bpf.MemoryMemoryDevice, to uint64) []event.Event {
	e := event.Event{
		TS:    d.Sent,
		Dur:   to - min(to, d.Sent),
		PID:   key.pid(),
		TID:   key.pid(),
		Func:  key.device(),
		Flags: event.Timed,
	}
	level, flow := e, e
	level.Kind, level.Args = event.Memory, [4]uint64{d.Allocated, d.Reserved, max(d.High, d.Allocated), d.Before}
	flow.Kind, flow.Args = event.MemoryFlow, [4]uint64{d.Allocations, d.Frees, d.AllocatedBytes, d.FreedBytes}
	return []event.Event{level, flow}
}

// reconcile drops what is not live any more where records of frees were lost. The caller holds the lock.
func (s *Source) reconcile(to uint64) {
	unfreed := s.programs.counts().unfreed
	if unfreed == s.feed.unfreed {
		return
	}
	s.feed.unfreed = unfreed
	for key := range s.feed.live {
		if !s.programs.live(key) {
			s.freed(key, to)
		}
	}
}

// end ends what is known of a process.
func (s *Source) end(pid uint32, at uint64) error {
	off := s.Level() == levelOff
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	if s.programs.reader == nil {
		return nil
	}
	s.take(s.feed.held)
	for key, d := range s.programs.devices() {
		if key.pid() == pid {
			if !off || !key.isDriver() {
				s.feed.ready = append(s.feed.ready, standing(key, &d, at)...)
			}
			r := runsOf(key, &d, levelSampled)
			s.feed.spent.Count, s.feed.spent.NS = s.feed.spent.Count+r.Count, s.feed.spent.NS+r.NS
		}
	}
	for key, b := range s.feed.live {
		if key.device.pid() == pid {
			s.feed.ready = append(s.feed.ready, b.event(key, at, event.Open))
			delete(s.feed.live, key)
			s.programs.drop(key)
		}
	}
	for _, n := range s.programs.switches(pid) {
		r := switchRuns(n, levelSampled)
		s.feed.spent.Count, s.feed.spent.NS = s.feed.spent.Count+r.Count, s.feed.spent.NS+r.NS
	}
	return s.programs.forget(pid)
}

// replaced ends what a process held when it replaced its program: its contexts are gone.
// The caller holds the lock of the source.
func (s *Source) replaced(pid uint32, at uint64) error {
	off := s.level == levelOff
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	if s.programs.reader == nil {
		return nil
	}
	s.take(s.feed.held)
	for key := range s.feed.live {
		if key.device.pid() == pid {
			s.freed(key, at)
			s.programs.drop(key)
		}
	}
	return s.programs.empty(at, func(key deviceKey, d *bpf.MemoryMemoryDevice) bool {
		if key.pid() != pid {
			return false
		}
		if !off || !key.isDriver() {
			s.feed.ready = append(s.feed.ready, standing(key, d, at)...)
		}
		d.FreedBytes, d.Before, d.Live = d.FreedBytes+d.Allocated, 0, 0
		return true
	}, pid)
}
