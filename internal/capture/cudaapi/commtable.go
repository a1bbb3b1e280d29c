package cudaapi

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/ring"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// Limits of what is known and read of communicators, so that a target pays for what it makes, and no other one.
const (
	maxComms    = 4096 // of a target
	maxRead     = 256  // that a helper reads
	maxReaders  = 8    // helpers, one of a target; one that hangs keeps its place
	readPace    = 500 * time.Millisecond
	maxTries    = 10
	firstWait   = 10_000_000     // ns: base of the pauses between tries, which double
	lossPeriod  = 10_000_000_000 // ns: how often it is asked whether events were lost
	purgePeriod = 1_000_000_000  // ns
)

// comm is what is known of a communicator.
type comm struct {
	row     recording.Communicator // as it was read last
	known   bool
	wanted  bool   // a helper reads it, or will
	ended   bool   // its address may be another's soon
	mixed   bool   // its address was used by several that differ
	endings uint   // how often it ended
	tries   uint   // that failed
	used    uint64 // ns
	next    uint64 // ns: when it is tried again
}

func (m *comm) end() {
	m.ended = true
	m.endings++
}

// settled reports whether there is no reason to read it now.
func (m *comm) settled(at uint64) bool {
	return m.wanted || m.mixed || !m.ended && (m.known || m.tries == maxTries || at < m.next)
}

// members are the communicators of a process.
type members struct {
	p      *proc.Process
	fields []rankField // of its libraries
	all    map[uint64]*comm
	wanted []uint64 // addresses
	purged uint64   // ns
}

func (q *members) end() {
	for _, m := range q.all {
		m.end()
	}
}

// departed is a communicator of a process that is not followed any more.
type departed struct {
	id   proc.ID
	root uint32
	at   uint64 // ns
	row  recording.Communicator
}

// communicators are what NCCL's communicators say of themselves. A helper reads them when they are first used.
type communicators struct {
	uses atomic.Pointer[[]use] // by number of a function; written under the lock of the source, as a whole
	read commReader            // nil: none is read
	lost func() uint64         // how many events were lost
	pace time.Duration         // between two helpers of a target
	keep time.Duration         // for how long recordings show what has ended

	mu      sync.Mutex // never held while memory is read
	procs   map[uint32]*members
	ended   []departed
	count   map[uint32]int  // of all, by target
	reading map[uint32]bool // targets of which a helper reads
	losses  uint64          // events lost so far
	checked uint64          // ns: when that was asked
}

// lostEvents returns what counts the events that did not come.
func lostEvents(rings *ring.Rings) func() uint64 {
	return func() (n uint64) {
		losses, _ := rings.Losses() // the daemon reports why they cannot be read
		for i := range losses {
			if losses[i].Reason != loss.CallsSkipped {
				n += losses[i].Count
			}
		}
		return n
	}
}

// follow notes a library of p.
func (c *communicators) follow(p *proc.Process, f rankField) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.procs == nil {
		c.procs, c.count, c.reading = map[uint32]*members{}, map[uint32]int{}, map[uint32]bool{}
	}
	q := c.procs[p.PID]
	if q != nil && q.p.ID() != p.ID() { // it has ended, and its pid is used again
		c.leave(q, clock.Monotonic())
		q = nil
	}
	if q == nil {
		q = &members{p: p, all: map[uint64]*comm{}}
		c.procs[p.PID] = q
	}
	if !slices.Contains(q.fields, f) {
		q.fields = append(q.fields, f)
	}
}

// renew notes that p has changed. A program that it replaced took its communicators along.
func (c *communicators) renew(p *proc.Process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q := c.procs[p.PID]; q != nil && q.p.ID() == p.ID() {
		if q.p.Execs != p.Execs {
			q.end()
		}
		q.p = p
	}
}

// forget keeps what is known of p's communicators for as long as recordings show it.
func (c *communicators) forget(p *proc.Process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := clock.Monotonic()
	c.ended = slices.DeleteFunc(c.ended, func(d departed) bool {
		old := d.at+uint64(c.keep) < now
		if old {
			c.discount(d.root)
		}
		return old
	})
	if q := c.procs[p.PID]; q != nil && q.p.ID() == p.ID() {
		delete(c.procs, p.PID)
		c.leave(q, now)
	}
}

func (c *communicators) leave(q *members, now uint64) {
	for _, m := range q.all {
		if m.known {
			c.ended = append(c.ended, departed{q.p.ID(), q.p.Root, now, m.row})
		} else {
			c.discount(q.p.Root)
		}
	}
}

func (c *communicators) discount(root uint32) {
	if c.count[root]--; c.count[root] <= 0 {
		delete(c.count, root)
	}
}

// used lets a communicator be read that is new. An address that was used again, by a communicator that differs, is not
// known.
func (c *communicators) used(pid uint32, address, at uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.procs[pid]
	if q == nil || at < q.p.Born { // a call of a process that had the pid before
		return
	}
	c.check(at)
	m := q.all[address]
	if m == nil {
		if !c.room(q, at) {
			return
		}
		m = &comm{}
		q.all[address] = m
		c.count[q.p.Root]++
	}
	if m.settled(at) {
		return
	}
	if m.ended {
		m.ended, m.known, m.tries = false, false, 0
	}
	m.used, m.wanted = at, true
	q.wanted = append(q.wanted, address)
	c.start(q.p.Root)
}

// room reports whether the target of q may have one more, for which it forgets those of q that are not known.
func (c *communicators) room(q *members, at uint64) bool {
	root := q.p.Root
	if c.count[root] >= maxComms && at >= q.purged+purgePeriod {
		q.purged, q.wanted = at, nil
		for address, m := range q.all {
			if !m.known || m.ended {
				delete(q.all, address)
				c.discount(root)
			}
		}
	}
	return c.count[root] < maxComms
}

// end lets a communicator be read again where its address is used again.
func (c *communicators) end(pid uint32, address uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q := c.procs[pid]; q != nil && q.all[address] != nil {
		q.all[address].end()
	}
}

// doubt lets all communicators be read again: their ends may not have been seen.
func (c *communicators) doubt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.doubtAll()
}

func (c *communicators) doubtAll() {
	for _, q := range c.procs {
		q.end()
	}
}

// check doubts all where events were lost. The caller holds the lock.
func (c *communicators) check(at uint64) {
	if c.lost == nil || at < c.checked+lossPeriod {
		return
	}
	c.checked = at
	if n := c.lost(); n != c.losses {
		c.losses = n
		c.doubtAll()
	}
}

// start begins to read what is wanted of a target, unless a helper does that already. The caller holds the lock.
func (c *communicators) start(root uint32) {
	if c.read == nil || c.reading[root] || len(c.reading) >= maxReaders {
		return
	}
	c.reading[root] = true
	go func() { // nobody waits for it
		c.ask(root)
		time.AfterFunc(c.pace, func() { c.next(root) })
	}()
}

// next begins to read what had to wait for a target's helper.
func (c *communicators) next(root uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.reading, root)
	for _, q := range c.procs {
		if len(q.wanted) > 0 {
			c.start(q.p.Root)
		}
	}
}

// asked is what a helper reads of a process.
type asked struct {
	of      *members
	p       *proc.Process // as it was then
	fields  []rankField
	endings map[uint64]uint // by address
	rows    map[uint64]recording.Communicator
}

// ask reads communicators of a target.
func (c *communicators) ask(root uint32) {
	all := c.wanted(root)
	questions := make([]commQuestion, 0, len(all))
	for _, a := range all {
		question := commQuestion{PID: a.p.PID, Addresses: slices.Collect(maps.Keys(a.endings))}
		for _, f := range a.fields {
			question.Offsets = append(question.Offsets, f.offset)
		}
		questions = append(questions, question)
	}
	if len(questions) == 0 {
		return
	}
	for _, answer := range c.read(questions) {
		if a := all[answer.PID]; a != nil {
			a.take(&answer)
		}
	}
	for pid, a := range all {
		if !a.p.Alive() { // it may be another process that was read, which has its pid now
			delete(all, pid)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range all {
		a.settle()
	}
}

// wanted returns what is to be read of a target, by process.
func (c *communicators) wanted(root uint32) map[uint32]*asked {
	c.mu.Lock()
	defer c.mu.Unlock()
	all, room := map[uint32]*asked{}, maxRead
	for pid, q := range c.procs {
		n := min(len(q.wanted), room)
		if q.p.Root != root || n == 0 {
			continue
		}
		a := &asked{q, q.p, slices.Clone(q.fields), map[uint64]uint{}, map[uint64]recording.Communicator{}}
		for _, address := range q.wanted[:n] {
			a.endings[address] = q.all[address].endings
		}
		q.wanted = slices.Delete(q.wanted, 0, n)
		all[pid], room = a, room-n
	}
	return all
}

func (a *asked) take(answer *commAnswer) {
	for _, f := range a.fields {
		if row, ok := f.row(answer); ok && f.offset == answer.Offset {
			a.rows[answer.Address] = row
		}
	}
}

// settle notes what was read. The caller holds the lock.
func (a *asked) settle() {
	for address, before := range a.endings {
		m := a.of.all[address]
		if m == nil {
			continue
		}
		m.wanted = false
		row, ok := a.rows[address]
		switch {
		case m.endings != before: // it may be another one's
		case !ok:
			m.tries++
			m.next = m.used + firstWait<<m.tries
		case m.row.Ranks > 0 && m.row != row:
			m.mixed = true
		default:
			m.row, m.known, m.tries = row, true, 0
		}
	}
}

// rows returns what is known, by process and address.
func (c *communicators) rows(want func(proc.ID) bool) []recording.Communicator {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []recording.Communicator
	for _, d := range c.ended {
		if want(d.id) {
			out = append(out, d.row)
		}
	}
	for _, q := range c.procs {
		if !want(q.p.ID()) {
			continue
		}
		for _, m := range q.all {
			if m.known {
				out = append(out, m.row)
			}
		}
	}
	slices.SortFunc(out, func(a, b recording.Communicator) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.Address, b.Address))
	})
	return sole(out)
}

// sole drops what sorted rows say differently of one address, as of two processes that had one pid.
func sole(rows []recording.Communicator) (out []recording.Communicator) {
	for len(rows) > 0 {
		first, n, same := rows[0], 1, true
		for ; n < len(rows) && rows[n].PID == first.PID && rows[n].Address == first.Address; n++ {
			same = same && rows[n] == first
		}
		if same {
			out = append(out, first)
		}
		rows = rows[n:]
	}
	return out
}
