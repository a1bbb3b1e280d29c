package collectives

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/inferscope/inferscope/internal/recording"
)

// Late is a rank that NCCL's RAS says has launched fewer operations of a kind than another rank of its communicator, or
// that did not answer.
type Late struct {
	Communicator string
	Rank         recording.RASRank
	Operation    string // "": it did not answer
	Count, Most  uint64 // what it launched, and the most of any rank
}

// Lates returns the ranks that RAS says are behind; those that do not answer first. RAS asks ranks one after the other:
// one that is behind for a moment only is among them.
func Lates(r *recording.RAS) []Late {
	if r == nil {
		return nil
	}
	var out []Late
	for i := range r.Communicators {
		c := &r.Communicators[i]
		for _, m := range c.Missing {
			out = append(out, Late{Communicator: c.Hash, Rank: m})
		}
		most := map[string]uint64{}
		for name, n := range c.Most {
			most[name] = n
		}
		for _, x := range c.Ranks {
			for name, n := range x.Counts {
				most[name] = max(most[name], n)
			}
		}
		for _, x := range c.Ranks {
			for name, n := range x.Counts {
				if n < most[name] {
					out = append(out, Late{Communicator: c.Hash, Rank: x, Operation: name, Count: n, Most: most[name]})
				}
			}
		}
	}
	slices.SortFunc(out, func(x, y Late) int {
		return cmp.Or(cmp.Compare(x.Operation, y.Operation), cmp.Compare(x.Communicator, y.Communicator),
			cmp.Compare(x.Rank.Rank, y.Rank.Rank))
	})
	return out
}

// quiet is for how long before RAS was asked no rank may have called anything, ns: what it says of ranks that go on is
// of different times.
const quiet = 1_000_000_000

// counted are the operations that RAS counts.
var counted = map[string]bool{
	"AllReduce": true, "AllGather": true, "ReduceScatter": true, "Broadcast": true, "Reduce": true,
}

// byRAS returns from when on the calls of each member of a communicator are to be counted, by how many each has
// launched since the communicator was made. It needs no record of a GPU.
func (s *summing) byRAS() []map[local]uint64 {
	r := s.t.Rec.Meta.RAS
	if r == nil {
		return nil
	}
	own := s.launchedBy()
	var out []map[local]uint64
	for i := range r.Communicators {
		if from := s.even(&r.Communicators[i], own, r.At); from != nil {
			out = append(out, from)
		}
	}
	return out
}

// launchedBy returns the times of all calls of each process, by its communicator.
func (s *summing) launchedBy() map[uint32]map[uint64][]call {
	out := map[uint32]map[uint64][]call{}
	for th, calls := range s.calls {
		for _, c := range calls {
			if c.kind != exchange {
				continue
			}
			if out[th.pid] == nil {
				out[th.pid] = map[uint64][]call{}
			}
			out[th.pid][c.key.comm] = append(out[th.pid][c.key.comm], c)
		}
	}
	return out
}

// even returns from when on the members of a communicator have launched as many operations as the one had at the
// beginning of the recording that was ahead; nil where that is not certain.
func (s *summing) even(c *recording.RASCommunicator, own map[uint32]map[uint64][]call, at uint64) map[local]uint64 {
	if c.Size < 2 || len(c.Ranks) != c.Size || len(c.Missing) > 0 {
		return nil
	}
	before, calls, ahead := map[local]uint64{}, map[local][]call{}, uint64(0)
	for i := range c.Ranks {
		pid, ok := s.process(c.Ranks[i].PID)
		if !ok {
			return nil // on another host
		}
		comm, ok := s.addressOf(c, c.Ranks[i].Rank, pid, own[pid])
		if !ok {
			return nil
		}
		all := uint64(0)
		for _, n := range c.Ranks[i].Counts {
			all += n
		}
		list := own[pid][comm]
		slices.SortFunc(list, func(x, y call) int { return cmp.Compare(x.at, y.at) })
		odd := slices.ContainsFunc(list, func(x call) bool { return !counted[x.key.name] })
		if odd || list[len(list)-1].at+quiet > at || all < uint64(len(list)) {
			return nil
		}
		of := local{pid, comm}
		before[of], calls[of] = all-uint64(len(list)), list
		ahead = max(ahead, before[of])
	}
	if len(before) != c.Size {
		return nil // two ranks of one process
	}
	from := map[local]uint64{}
	for of, n := range before {
		skip := ahead - n
		if skip > uint64(len(calls[of])) {
			return nil
		}
		from[of] = 0
		if skip > 0 {
			from[of] = calls[of][skip-1].at
		}
	}
	for of := range before {
		s.sizes[of] = c.Size
	}
	return from
}

// addressOf returns what the process of a rank calls a communicator, of those that it used: the one that said so
// itself, else the only one.
func (s *summing) addressOf(
	c *recording.RASCommunicator, rank int, pid uint32, used map[uint64][]call,
) (uint64, bool) {
	hash, err := strconv.ParseUint(c.Hash, 16, 64)
	for address := range used {
		if x := s.known[local{pid, address}]; err == nil && x != nil && x.Rank == rank && x.Hash != "" {
			if own, err := strconv.ParseUint(x.Hash, 16, 64); err == nil && own == hash {
				return address, true
			}
		}
	}
	for address := range used {
		x := s.known[local{pid, address}]
		return address, len(used) == 1 && (x == nil || x.Hash == "")
	}
	return 0, false
}

// sizesByRAS returns how many ranks the communicators of each process have; 0 where they differ.
func (s *summing) sizesByRAS() map[uint32]uint64 {
	sizes := map[uint32]uint64{}
	if s.t.Rec.Meta.RAS == nil {
		return sizes
	}
	for _, c := range s.t.Rec.Meta.RAS.Communicators {
		for _, r := range slices.Concat(c.Ranks, c.Missing) {
			pid, ok := s.process(r.PID)
			if !ok {
				continue
			}
			size := uint64(max(0, c.Size))
			if before, known := sizes[pid]; known && before != size {
				size = 0
			}
			sizes[pid] = size
		}
	}
	return sizes
}

// process finds the process that a rank calls itself, in its own pid namespace.
func (s *summing) process(pid uint32) (uint32, bool) {
	for i := range s.t.Processes {
		if p := &s.t.Processes[i]; p.NSPID == pid || p.NSPID == 0 && p.PID == pid {
			return p.PID, pid != 0
		}
	}
	return 0, false
}
