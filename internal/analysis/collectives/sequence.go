package collectives

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// Ranks make the calls of one communicator in one order (NCCL requires it). So the n-th call of one rank and the n-th
// of another are one collective, whenever they run: counted from the making of the communicator where that was
// recorded, else from the first call that was, with an offset between two ranks that most of the collectives agree on
// which were found by their times.

// place is a call of NCCL as a member of its communicator.
type place struct {
	comm     uint64
	sequence int // from 1, as recorded; 0: the operation belongs to none, or to several calls of a group
}

// agreement is the share of the votes from which on an offset is taken for that of two ranks.
const agreement = 0.9

// places finds the calls of operations of the GPU whose kernels communicate.
func (s *summing) places() map[int32]place {
	out := map[int32]place{}
	talks := s.t.Communicates()
	if len(s.t.Collectives) == 0 || talks == nil {
		return out
	}
	numbers := s.numbers()
	s.launches(talks, func(op int32, of thread, calls []int) {
		p := place{comm: s.calls[of][calls[0]].key.comm}
		if list := numbers[of]; len(calls) == 1 && list != nil {
			p.sequence = list[calls[0]]
		}
		out[op] = p
	})
	return out
}

// ways finds the operations of the GPU that send, and those that receive. One that does both is not among them.
func (s *summing) ways() map[int32]way {
	out := map[int32]way{}
	s.launches(passing(s.t), func(op int32, of thread, calls []int) {
		switch s.calls[of][calls[0]].key.name {
		case "Send":
			out[op] = sends
		case "Recv":
			out[op] = receives
		}
	})
	return out
}

// launches passes on each operation of the GPU whose kernel is among some, with its thread and the calls that launched
// it, as places in its thread's list, as far as they are known.
func (s *summing) launches(kernels []bool, take func(op int32, of thread, calls []int)) {
	if kernels == nil || len(s.t.Collectives) == 0 {
		return
	}
	for i := range s.t.Activities {
		a := &s.t.Activities[i]
		k := s.t.KernelIndex(a)
		if k == timeline.None || !kernels[k] || a.Op == timeline.None || a.Graph {
			continue
		}
		launch := &s.t.Rec.Events[s.t.Ops[a.Op].Event]
		of := thread{launch.PID, launch.TID}
		if calls := launched(s.calls[of], launch.TS); len(calls) > 0 {
			take(a.Op, of, calls)
		}
	}
}

// numbers counts the calls of each communicator in the order of time, by thread and place in its list of calls; nil
// where calls may be missing.
func (s *summing) numbers() map[thread][]int {
	if s.incomplete() {
		return nil
	}
	type one struct {
		of thread
		i  int
	}
	all := map[local][]one{}
	out := map[thread][]int{}
	for of, calls := range s.calls {
		out[of] = make([]int, len(calls))
		for i := range calls {
			if calls[i].kind == exchange {
				comm := local{of.pid, calls[i].key.comm}
				all[comm] = append(all[comm], one{of, i})
			}
		}
	}
	for comm, list := range all {
		if s.made[comm] > 1 {
			continue // an address that was used again
		}
		slices.SortFunc(list, func(x, y one) int {
			return cmp.Or(cmp.Compare(s.calls[x.of][x.i].at, s.calls[y.of][y.i].at), cmp.Compare(x.of.tid, y.of.tid))
		})
		for n, o := range list {
			out[o.of][o.i] = n + 1
		}
	}
	return out
}

// aligned is what is known of the sequences of two ranks.
type aligned struct {
	comm   uint64 // of the other member
	offset int    // from the sequence of the least member to that of the other one
}

// align fixes the offsets of communicators, from the votes of collectives that were found by their times.
func (c *comparing) align(votes []map[[2]uint64]map[int]int) {
	c.offsets, c.bySequence = make([]map[uint64]aligned, len(c.lists)), make([]map[place]int, len(c.lists))
	for m := range c.lists {
		c.offsets[m], c.bySequence[m] = map[uint64]aligned{}, map[place]int{}
		for own, other := range c.pairs[m] {
			all, best, most := 0, 0, 0
			for offset, n := range votes[m][[2]uint64{own, other}] {
				all += n
				if n > most || n == most && offset < best {
					best, most = offset, n
				}
			}
			if c.madeBoth(m, own, other) {
				best, most, all = 0, leastSets, leastSets
			}
			if most >= leastSets && float64(most) >= agreement*float64(all) {
				c.offsets[m][own] = aligned{other, best}
			}
		}
		for i := range c.lists[m] {
			p := c.comms[c.lists[m][i].Op]
			if _, twice := c.bySequence[m][p]; twice {
				c.bySequence[m][p] = -1 // several kernels of one call
				continue
			}
			c.bySequence[m][p] = i
		}
	}
}

// madeBoth reports whether the making of a communicator was recorded in both processes.
func (c *comparing) madeBoth(m int, own, other uint64) bool {
	pid := func(m int) uint32 { return c.t.Processes[c.members[m].Process].PID }
	return c.made[local{pid(c.least), own}] == 1 && c.made[local{pid(m), other}] == 1
}

// next returns which activity of a member is the same collective as one of the least member by their sequence, -1 where
// it was not recorded; known is false where the sequence does not tell.
func (c *comparing) next(own *timeline.Activity, m int) (i int, known bool) {
	p := c.comms[own.Op]
	if p.sequence == 0 || c.offsets == nil {
		return 0, false
	}
	to, known := c.offsets[m][p.comm]
	if mine, ok := c.bySequence[c.least][p]; !known || !ok || mine < 0 {
		return 0, false
	}
	i, recorded := c.bySequence[m][place{to.comm, p.sequence + to.offset}]
	if !recorded {
		return -1, true
	}
	return i, true
}
