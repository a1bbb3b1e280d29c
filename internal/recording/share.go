package recording

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// Bounds of what is kept apart.
const (
	maxHistories = 64   // targets that have events; more of them share one history
	maxEnded     = 4096 // processes that have ended, whose events are still known for their target's
)

// Owner says to whom events belong: memory is shared fairly among users, and what a user has
// among that user's targets.
type Owner struct {
	UID    uint32 // who runs the target's first process
	Target uint32 // pid of that process
}

// nobody owns events of processes that were assigned to no target, or not yet.
//
//nolint:gochecknoglobals // never written to
var nobody = Owner{UID: math.MaxUint32}

// history holds the events of one target.
type history struct {
	owner    Owner
	live     []*segment // oldest first; the last one is being filled
	state    *state     // of the packer of the last one; nil where live is empty
	retained int        // segments that are not live any more, and that snapshots show
	pinned   int        // segments that snapshots show

	since       uint64 // as Stats.Since
	overwritten uint64
	throttled   uint64
	left        uint64 // events that it may still append before the next pass
	limited     bool
}

// segments returns how much of the memory the history takes.
func (h *history) segments() int { return len(h.live) + h.retained }

// grant returns how many of n events may be appended, and counts the rest.
func (h *history) grant(n int) int {
	if !h.limited {
		return n
	}
	taken := min(uint64(n), h.left)
	h.left -= taken
	h.throttled += uint64(n) - taken
	return int(taken)
}

// assignment says whose events those of a process are: from its birth on, and those of the process that had its pid
// before.
type assignment struct {
	born      uint64 // ns
	now, then *history
}

// Assign sets whose events those of a process are that was born then (ns, CLOCK_MONOTONIC). Events of before
// stay with whom the pid was assigned to last.
func (r *Recorder) Assign(pid uint32, born uint64, o Owner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h, before := r.history(o), r.histories[0]
	if last, known := r.of[pid]; known && last.born == born {
		before = last.then
	} else if known {
		before = last.now
	}
	r.of[pid] = assignment{born: born, now: h, then: before}
	r.ended = slices.DeleteFunc(r.ended, func(p uint32) bool { return p == pid })
}

// Unassign marks a process as ended. Its last events may still come.
func (r *Recorder) Unassign(pid uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.of[pid]; !known || slices.Contains(r.ended, pid) {
		return
	}
	if len(r.ended) >= maxEnded {
		for _, p := range r.ended[:maxEnded/4] {
			delete(r.of, p)
		}
		r.ended = slices.Delete(r.ended, 0, maxEnded/4)
	}
	r.ended = append(r.ended, pid)
}

// run returns how many of the first events belong together, and to whom.
func (r *Recorder) run(events []event.Event) (h *history, n int) {
	pid := events[0].PID
	a, known := r.of[pid]
	if !known {
		a.now, a.then = r.histories[0], r.histories[0]
	}
	n = 1
	if events[0].TS < a.born {
		for n < len(events) && events[n].PID == pid && events[n].TS < a.born {
			n++
		}
		return a.then, n
	}
	for n < len(events) && events[n].PID == pid && events[n].TS >= a.born {
		n++
	}
	return a.now, n
}

// history returns that of an owner. Where there are too many, one makes room of which nothing is
// held; where each holds something, the owner has to do with what is nobody's.
func (r *Recorder) history(o Owner) *history {
	if h := r.find(o); h != nil {
		return h
	}
	if len(r.histories) >= maxHistories {
		i := slices.IndexFunc(r.histories, func(h *history) bool { return h.owner != nobody && h.segments() == 0 })
		if i < 0 {
			return r.histories[0]
		}
		r.forget(i)
	}
	h := &history{owner: o}
	if r.limit > 0 {
		h.limited, h.left = true, r.limit
	}
	r.histories = append(r.histories, h)
	return h
}

func (r *Recorder) find(o Owner) *history {
	for _, h := range r.histories {
		if h.owner == o {
			return h
		}
	}
	return nil
}

// forget lets go of an empty history. Who asks for it later hears from when on it would be complete.
func (r *Recorder) forget(i int) {
	h := r.histories[i]
	r.forgotten = max(r.forgotten, h.since)
	r.histories = slices.Delete(r.histories, i, i+1)
	for pid, a := range r.of {
		switch {
		case a.now == h:
			delete(r.of, pid)
		case a.then == h:
			a.then = r.histories[0]
			r.of[pid] = a
		}
	}
}

// Limit bounds the events that one target may append, as a rate over the time that Pass is told.
// What is beyond is counted. 0: there is no bound.
func (r *Recorder) Limit(perSecond uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.limit = perSecond
	for _, h := range r.histories {
		h.limited, h.left = perSecond > 0, perSecond
	}
}

// Pass says what time it is (ns, CLOCK_MONOTONIC), and lets go of what has expired. It is called before the rings are
// emptied.
func (r *Recorder) Pass(now uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.limit > 0 {
		since := min(now-min(now, r.passed), second)
		more := since * r.limit / second
		if more == 0 && since > 0 {
			return // too short to give anything
		}
		for _, h := range r.histories {
			h.left = min(h.left+more, r.limit)
		}
	}
	r.passed = now
	r.expire()
}

const second = 1_000_000_000

// largest returns the history that has to make room: of the user who has most, the largest that
// has something to give.
func (r *Recorder) largest() *history {
	var found *history
	for _, h := range r.histories {
		if len(h.live) > 0 && (found == nil || r.compare(h, found) > 0) {
			found = h
		}
	}
	return found
}

// compare orders histories by what their users have, those of one user by what they have themselves.
func (r *Recorder) compare(a, b *history) int {
	return cmp.Or(
		cmp.Compare(r.taken(a.owner.UID), r.taken(b.owner.UID)),
		cmp.Compare(a.segments(), b.segments()),
	)
}

// taken returns how many segments hold events of a user.
func (r *Recorder) taken(uid uint32) int {
	n := 0
	for _, h := range r.histories {
		if h.owner.UID == uid {
			n += h.segments()
		}
	}
	return n
}

// pinnable returns how many more segments of a user's snapshots may show: together with those of
// others never all, and of one user never more than its share of the memory.
func (r *Recorder) pinnable(uid uint32) int {
	users := map[uint32]bool{uid: true}
	pinned := 0
	for _, h := range r.histories {
		if h.segments() > 0 && h.owner != nobody {
			users[h.owner.UID] = true
		}
		if h.owner.UID == uid {
			pinned += h.pinned
		}
	}
	return min(r.maxPinned-r.pinned, r.maxPinned/len(users)-pinned)
}

// Losses returns what of each target was not kept since the start: its Where names the target.
// Whether what was overwritten concerns a window, Snapshot.Losses says.
func (r *Recorder) Losses() []loss.Loss {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []loss.Loss
	add := func(reason loss.Reason, o Owner, n uint64) {
		if n > 0 {
			out = append(out, loss.Loss{Reason: reason, Count: n, PID: o.Target, Where: o.String()})
		}
	}
	for _, h := range r.histories {
		add(loss.Overwritten, h.owner, h.overwritten)
		add(loss.EventsThrottled, h.owner, h.throttled)
	}
	if n := r.stats.Damaged; n > 0 {
		out = append(out, loss.Loss{Reason: loss.HistoryDamaged, Count: n})
	}
	return out
}

// String names the target as losses do.
func (o Owner) String() string {
	if o == nobody {
		return "processes that are not known"
	}
	return fmt.Sprintf("pid %d", o.Target)
}

// chosen returns the histories of owners and what is nobody's; all of them where none is named.
func (r *Recorder) chosen(owners []Owner) []*history {
	if len(owners) == 0 {
		return r.histories
	}
	out := r.histories[:1:1]
	for _, o := range owners {
		if h := r.find(o); h != nil && h != r.histories[0] {
			out = append(out, h)
		}
	}
	return out
}

// maxShown is the most events of a snapshot: as many as ReadStream takes by default.
const maxShown = maxStreamed/event.Size - 1<<16
