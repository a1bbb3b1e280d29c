package overhead

import (
	"cmp"
	"math"
	"slices"
	"sync"
)

// Bins of a signal: 10 s, 16 KiB.
const (
	binTime    = 5_000_000 // ns
	bins       = 1 << 11
	maxSignals = 24 // of one target
	fewest     = 6  // counts in a slice without which it says nothing
)

// Key names a signal: calls of one function by one thread, or, with thread 0, by any.
type Key struct {
	TID  uint32
	Func uint16
}

// Progress counts by time what a target does again and again - it synchronizes, copies, replays
// graphs - to tell how fast it gets on. Note and the others may be called from two goroutines.
type Progress struct {
	mu      sync.Mutex
	signals map[Key]*signal
	last    Key
	recent  *signal // of last
}

// NewProgress returns one that has seen nothing.
func NewProgress() *Progress { return &Progress{signals: map[Key]*signal{}} }

// signal is what is known of one key.
type signal struct {
	newest  uint64 // bin of the latest; 0: none
	total   uint64
	inCalls uint64  // ns inside of them
	any     *signal // that of all threads
	bins    [bins]bin
}

// bin is a stretch of time: when its first event was tells more exactly than counts when a slice begins.
type bin struct {
	count uint32
	first uint32 // ns since the bin began
}

// Note counts a call that began at ts (ns) and took dur. Those of several CPUs come in any order, but not late by
// seconds.
func (p *Progress) Note(key Key, ts, dur uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.recent == nil || key != p.last {
		s := p.signal(key)
		if s == nil {
			return
		}
		p.last, p.recent = key, s
	}
	s := p.recent
	s.inCalls += dur
	s.note(ts)
	if s.any != nil {
		s.any.note(ts)
	}
}

// signal returns that of a key; nil where there are too many. One that has long been silent makes room.
func (p *Progress) signal(key Key) *signal {
	if s := p.signals[key]; s != nil {
		return s
	}
	if len(p.signals) >= maxSignals && !p.makeRoom() {
		return nil
	}
	s := &signal{}
	p.signals[key] = s
	if key.TID != 0 {
		s.any = p.signal(Key{Func: key.Func})
	}
	return s
}

// makeRoom drops the signal that has been silent for longest, if all its bins are over.
func (p *Progress) makeRoom() bool {
	var oldest Key
	at, newest := uint64(math.MaxUint64), uint64(0)
	for k, s := range p.signals {
		newest = max(newest, s.newest)
		if s.newest < at {
			oldest, at = k, s.newest
		}
	}
	if newest-at < bins {
		return false
	}
	delete(p.signals, oldest)
	return true
}

func (s *signal) note(ts uint64) {
	at := ts / binTime
	if at > s.newest {
		for b := max(s.newest+1, at-min(at, bins-1)); b <= at; b++ {
			s.bins[b%bins] = bin{}
		}
		s.newest = at
	}
	if s.newest-at >= bins {
		return
	}
	b := &s.bins[at%bins]
	if offset := uint32(ts % binTime); b.count == 0 || offset < b.first {
		b.first = offset
	}
	b.count++
	s.total++
}

// rate returns how many a second there were in [from, to): from the first at or after from to the
// first at or after to, so that a regular loop has no error of counting. ok is false where there are too few.
func (s *signal) rate(from, to uint64) (perSecond float64, ok bool) {
	first, end := (from+binTime-1)/binTime, (to+binTime-1)/binTime
	if s.newest == 0 || end > s.newest+1 || s.newest-min(s.newest, first) >= bins || end <= first {
		return 0, false
	}
	began, ended, n := uint64(0), uint64(0), uint64(0)
	for b := first; b <= s.newest && b < end+(end-first); b++ {
		at := &s.bins[b%bins]
		if at.count == 0 {
			continue
		}
		if b >= end {
			ended = b*binTime + uint64(at.first)
			break
		}
		if began == 0 {
			began = b*binTime + uint64(at.first)
		}
		n += uint64(at.count)
	}
	if n < fewest || ended <= began {
		return 0, false
	}
	return float64(n) / (float64(ended-began) / 1e9), true
}

// inCalls returns for how long each thread was in calls that were noted, in ns so far.
func (p *Progress) inCalls() map[uint32]uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[uint32]uint64{}
	for k, s := range p.signals {
		out[k.TID] += s.inCalls
	}
	return out
}

// tooUneven is the spread of a signal from one stretch to the next, as a share, above which it tells nothing.
const tooUneven = 0.35

// pitch is by what stretches a signal is judged: a slow loop needs longer ones.
type pitch struct {
	each, stretches uint64
}

// steady is a signal that was found to be even enough.
type steady struct {
	key    Key
	spread float64 // from one stretch to the next, as a share
	each   uint64  // ns: of the stretches that it was judged by
}

// steadiest returns the signal that differs least between neighbouring stretches of the last
// seconds before now; ok is false where there is none that is steady enough. Only signals that
// allowed accepts are looked at.
func (p *Progress) steadiest(now uint64, allowed func(Key) bool) (best steady, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	keys := make([]Key, 0, len(p.signals))
	for k := range p.signals {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b Key) int { return cmp.Or(cmp.Compare(a.Func, b.Func), cmp.Compare(a.TID, b.TID)) })
	for _, by := range [...]pitch{{200_000_000, 30}, {1_000_000_000, 8}} {
		best.spread = tooUneven
		for _, k := range keys {
			if !allowed(k) {
				continue
			}
			if e, seen := p.signals[k].spread(now, by); seen && e < best.spread {
				best, ok = steady{k, e, by.each}, true
			}
		}
		if ok {
			return best, true
		}
	}
	return steady{}, false
}

// undrained is how old events are at most that have not been noted yet.
const undrained = 500_000_000

// spread returns how much the rates of neighbouring stretches differ, as a share.
func (s *signal) spread(now uint64, by pitch) (share float64, ok bool) {
	var logs, steps []float64
	for i := range by.stretches {
		from := now - min(now, undrained+(by.stretches-i)*by.each)
		if r, seen := s.rate(from, from+by.each); seen {
			logs = append(logs, math.Log(r))
		}
	}
	if uint64(len(logs)) < by.stretches*2/3 {
		return 0, false
	}
	for i := 1; i < len(logs); i++ {
		steps = append(steps, math.Abs(logs[i]-logs[i-1]))
	}
	return madNormal * Median(steps), true
}

// rateOf returns the rate of one signal in [from, to) (ns).
func (p *Progress) rateOf(key Key, from, to uint64) (perSecond float64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.signals[key]; s != nil {
		return s.rate(from, to)
	}
	return 0, false
}

// Total returns how many calls were noted.
func (p *Progress) Total() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	sum := uint64(0)
	for k, s := range p.signals {
		if k.TID != 0 {
			sum += s.total
		}
	}
	return sum
}
