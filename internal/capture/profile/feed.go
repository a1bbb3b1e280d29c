package profile

import (
	"context"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// batchEvents is how many events are handed over at once.
const batchEvents = 128

// Feed takes what has come since the last call and hands the samples that are complete to emit; held is the time
// (ns) since which the recorder holds events. A batch is valid only until emit returns.
func (s *Source) Feed(held uint64, emit func(batch []event.Event)) {
	s.feed.Lock()
	defer s.feed.Unlock()
	if len(s.late) > 0 {
		emit(s.late)
		s.late = nil
	}
	s.pass(held, false, emit)
}

// pass is one look at the ring and at the unwinder's traces. The caller holds feed.
func (s *Source) pass(held uint64, all bool, emit func(batch []event.Event)) {
	state := s.library.Load()
	s.programs.read(s.take)
	if state.unwinder != nil {
		for _, t := range state.unwinder.take() {
			s.joiner.match(t)
		}
		if state.unwinder.err() != nil {
			all = true
			s.programs.unchain()
		}
	} else {
		all = true // nobody to wait for
	}
	now := clock.Monotonic()
	s.merged.at(s.convert.epoch.Load())
	batch := s.batch[:0]
	s.joiner.ready(now, all, func(p *pending) {
		batch = append(batch, s.finish(p, held))
		if len(batch) == batchEvents {
			emit(batch)
			batch = batch[:0]
		}
	})
	if len(batch) > 0 {
		emit(batch)
	}
	s.batch = batch
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clean(now)
}

// Settled reports whether no sample of before to (ns) waits for the unwinder any more.
func (s *Source) Settled(to uint64) bool {
	s.feed.Lock()
	defer s.feed.Unlock()
	return len(s.late) == 0 && !s.joiner.holds(to)
}

// take lets the sample of one record wait for its trace. Python code is named at
// once: a moment later its objects may be gone.
func (s *Source) take(record []byte) {
	r := &s.raw
	if err := r.decode(record); err != nil {
		s.tally.malformed.Add(1)
		return
	}
	p := s.joiner.fresh()
	p.header, p.kernel, p.hash = r.header, append(p.kernel, r.kernel...), s.merged.hash(r)
	p.returns = append(p.returns, r.returns...)
	if len(r.python) > 0 {
		if py := s.python(r.pid); py != nil {
			calls, lasting := py.stack(r, p.hash)
			p.calls = pyStack{calls: calls, complete: r.walk == bpf.SamplePythonWalkPYTHON_WALKED}
			if !lasting {
				p.hash = 0
			}
		}
	}
	s.joiner.add(p)
}

func (s *Source) python(pid uint32) *cpython {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.procs[pid]; q != nil {
		return q.python
	}
	if q := s.dead[pid]; q != nil {
		return q.python
	}
	return nil
}

// finish makes the event of a sample.
func (s *Source) finish(p *pending, held uint64) event.Event {
	m := s.merge(p, held)
	s.tally.add(p, m.origin)
	return event.Event{
		TS: p.ts, PID: p.pid, TID: p.tid, Func: uint16(p.cause), Kind: event.Sample, Ret: int32(p.cpu),
		Args: [4]uint64{m.number, uint64(m.origin)},
	}
}

// merge puts the stack of a sample into the table, where it may be already.
func (s *Source) merge(p *pending, held uint64) merged {
	native := p.trace != nil && len(p.trace.frames) > 0
	key := mergedKey{p.trace, p.hash}
	lasting := native && p.hash != 0
	if lasting {
		if m, ok := s.merged.known[key]; ok && s.table.again(m.number, p.ts) {
			return m
		}
	}
	room := s.frames[:0]
	for _, addr := range p.kernel {
		room = append(room, frame{kind: kernelFrame, addr: addr})
	}
	var leaf frame
	var inLoop bool
	if native {
		s.convert.mark(p.trace)
		inLoop = p.trace.eval[0]
	} else {
		leaf = s.modules.leaf(p.pid, p.ip)
		inLoop = s.convert.runs(&leaf)
	}
	st := merge(room, withCollector(p.calls, p.collects, inLoop), p.trace, leaf, s.probed(p))
	m := merged{s.table.add(st.frames, p.ts, held), st.origin}
	if lasting {
		s.merged.keep(key, m)
	}
	s.frames = st.frames
	return m
}

// probed returns the frames of the callers of calls whose return is probed, which is where a native stack ends:
// of each the kernel knows to where it returns.
func (s *Source) probed(p *pending) []frame {
	if len(p.returns) == 0 || p.trace == nil || p.trace.cut == "" {
		return nil
	}
	out := make([]frame, 0, len(p.returns))
	for _, at := range p.returns {
		out = append(
			out,
			s.modules.leaf(p.pid, at-1),
		) // into the call, which can be the last instruction of its function
	}
	return out
}

// queue lets a native frame be named ahead; where too many come, they are named when
// a recording is taken.
func (s *Source) queue(f *frame) {
	select {
	case s.toName <- *f:
	default:
	}
}

// nameAhead names native frames while their files can be read.
func (s *Source) nameAhead(ctx context.Context) {
	for ctx.Err() == nil { // first: a select with much to name would go on with that
		select {
		case <-ctx.Done():
			return
		case f := <-s.toName:
			s.namer.native(f)
		}
	}
}
