package profile

import "slices"

// near is how long after our program the unwinder may begin on the same sample, in
// ns. It is a few microseconds; a virtual CPU that is taken away in between makes it more.
const near = 5_000_000

// traceTimeout is how long a sample waits for the unwinder's trace, in ns. The unwinder
// reads its ring every 100 ms, its traces are looked for as often, and it takes longer
// when it meets a new program. daemon.settleBound is more.
const traceTimeout = 300_000_000

// maxPending bounds the samples that wait.
const maxPending = 32768

// maxSpare bounds those that are kept to be used again: 200 bytes each, and the kernel frames.
const maxSpare = 1024

// pending is a sample that waits for the unwinder's trace.
type pending struct {
	header
	kernel []uint64 // addresses, leaf first
	// returns are addresses that calls return to whose return is probed, leaf first
	returns []uint64
	hash    uint64 // of the Python and kernel frames; 0: they have no names that last
	calls   pyStack
	trace   *unwound
}

// joiner brings together the two records of a sample: both are written on the same
// interrupt, ours first, so a trace belongs to the last sample of its thread before
// it. Nearness in time alone would not do: samples may come closer together than the
// two records are apart.
type joiner struct {
	byTID   map[uint32][]*pending // in the order of time
	count   int
	orphans uint64 // traces without a sample
	spare   []*pending
}

func newJoiner() *joiner { return &joiner{byTID: map[uint32][]*pending{}} }

// add lets a sample wait.
func (j *joiner) add(p *pending) {
	list := j.byTID[p.tid]
	list = append(list, p)
	// A thread that moved to another CPU may be a place off in the ring.
	for i := len(list) - 1; i > 0 && list[i].ts < list[i-1].ts; i-- {
		list[i], list[i-1] = list[i-1], list[i]
	}
	j.byTID[p.tid] = list
	j.count++
}

// fresh returns a sample to be filled in.
func (j *joiner) fresh() *pending {
	n := len(j.spare)
	if n == 0 {
		return &pending{}
	}
	p := j.spare[n-1]
	j.spare = j.spare[:n-1]
	return p
}

// free takes a sample back that nobody holds any more.
func (j *joiner) free(p *pending) {
	if len(j.spare) < maxSpare {
		*p = pending{kernel: p.kernel[:0], returns: p.returns[:0]}
		j.spare = append(j.spare, p)
	}
}

// holds reports whether a sample of before to (ns) waits.
func (j *joiner) holds(to uint64) bool {
	for _, list := range j.byTID { // each in the order of time
		if list[0].ts < to {
			return true
		}
	}
	return false
}

// match gives a trace to its sample.
func (j *joiner) match(t trace) {
	list := j.byTID[t.tid]
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].ts > t.at {
			continue
		}
		if t.at-list[i].ts <= near && list[i].trace == nil {
			list[i].trace = t.stack
			return
		}
		break
	}
	j.orphans++
}

// ready takes out the samples that need not wait any longer, thread by thread: those
// with a trace, those before one with a trace (the unwinder has passed them by), and
// those that have waited until now. With all, every one.
func (j *joiner) ready(now uint64, all bool, f func(*pending)) {
	all = all || j.count > maxPending
	for tid, list := range j.byTID {
		n := 0
		for i, p := range list {
			if all || p.trace != nil || now-min(now, p.ts) > traceTimeout {
				n = i + 1
			}
		}
		for _, p := range list[:n] {
			f(p)
			j.free(p)
		}
		j.count -= n
		if n == len(list) {
			delete(j.byTID, tid)
			continue
		}
		j.byTID[tid] = slices.Delete(list, 0, n)
	}
}
