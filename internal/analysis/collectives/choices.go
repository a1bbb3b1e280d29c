package collectives

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/format"
)

// choice is an algorithm and a protocol that NCCL chose for calls.
type choice struct {
	Algorithm      string `json:"algorithm"` // RING, TREE, COLLNET_DIRECT, COLLNET_CHAIN, NVLS, NVLS_TREE, PAT
	Protocol       string `json:"protocol"`  // LL, LL128, SIMPLE
	Calls          uint64 `json:"calls"`
	FewestChannels uint32 `json:"fewest_channels"` // of a launch: thread blocks
	MostChannels   uint32 `json:"most_channels"`
}

// callAt is a call by its thread and its position among the thread's calls.
type callAt struct {
	thread
	at int
}

// launchedAs is how a call was launched; function is nil where launches disagree.
type launchedAs struct {
	function *cuda.NCCLFunction
	channels uint32
}

// choices adds how NCCL carried out the calls. A launch tells the function that its kernel begins with. The calls of a
// group share it only where they are of one size, as NCCL chooses for each size by itself.
func (s *summing) choices() {
	releases := s.releases()
	if len(releases) == 0 {
		return
	}
	symmetric := s.symmetric()
	calls := map[callAt]launchedAs{}
	for i := range s.t.Ops {
		op := &s.t.Ops[i]
		e := &s.t.Rec.Events[op.Event]
		index, known := e.NCCLFunction()
		if !known || symmetric[int32(i)] {
			continue
		}
		of := thread{e.PID, e.TID}
		list := s.calls[of]
		together := launched(list, e.TS)
		f, known := cuda.NCCLFunctionOf(releases[e.PID], index)
		if !known || !alike(list, together) || !f.Serves(list[together[0]].key.name, list[together[0]].key.kind) {
			continue
		}
		as := launchedAs{f, uint32(e.Args[2])}
		for _, at := range together {
			k := callAt{of, at}
			if before, again := calls[k]; again && before.function != f {
				as.function = nil
			}
			calls[k] = as
		}
	}
	for k, as := range calls {
		if as.function != nil {
			s.ops[s.calls[k.thread][k.at].key].choose(as)
		}
	}
}

// alike reports whether there are calls, all of one size.
func alike(list []call, together []int) bool {
	return len(together) > 0 && !slices.ContainsFunc(together, func(at int) bool {
		return list[at].bytes != list[together[0]].bytes
	})
}

// choose adds a call.
func (o *Operation) choose(as launchedAs) {
	at := slices.IndexFunc(o.Choices, func(c choice) bool {
		return c.Algorithm == as.function.Algorithm && c.Protocol == as.function.Protocol
	})
	if at < 0 {
		at = len(o.Choices)
		o.Choices = append(o.Choices, choice{
			Algorithm: as.function.Algorithm, Protocol: as.function.Protocol, FewestChannels: as.channels,
		})
	}
	c := &o.Choices[at]
	c.Calls++
	c.FewestChannels, c.MostChannels = min(c.FewestChannels, as.channels), max(c.MostChannels, as.channels)
}

// orderChoices puts the choice of most calls first.
func (o *Operation) orderChoices() {
	slices.SortFunc(o.Choices, func(a, b choice) int {
		return cmp.Or(cmp.Compare(b.Calls, a.Calls), strings.Compare(a.Algorithm, b.Algorithm),
			strings.Compare(a.Protocol, b.Protocol))
	})
}

// releases are those of NCCL by process, without processes that have several.
func (s *summing) releases() map[uint32]int {
	out := map[uint32]int{}
	for i := range s.t.Rec.Meta.Libraries {
		l := &s.t.Rec.Meta.Libraries[i]
		if l.Release == 0 {
			continue
		}
		if other, several := out[l.PID]; several && other != l.Release {
			out[l.PID] = 0
			continue
		}
		out[l.PID] = l.Release
	}
	return out
}

// symmetric are the calls that launched kernels for symmetric memory, whose parameters are others.
func (s *summing) symmetric() map[int32]bool {
	if s.t.Rec.Meta.GPU == nil {
		return nil
	}
	out := map[int32]bool{}
	for i := range s.t.Activities {
		a := &s.t.Activities[i]
		k := s.t.KernelIndex(a)
		if k != timeline.None && a.Op != timeline.None && strings.HasPrefix(s.t.Rec.Meta.GPU.Kernels[k].Name, "ncclSymk") {
			out[a.Op] = true
		}
	}
	return out
}

// Chosen returns the algorithms and protocols of calls, or copy engines, with their numbers, and the numbers of
// channels; "" where none is known.
func (o *Operation) Chosen() (choices, channels string) {
	var list []string
	if o.Copied > 0 {
		list = append(list, "copy engines "+format.Count(o.Copied))
	}
	if len(o.Choices) == 0 {
		return strings.Join(list, ""), ""
	}
	fewest, most := o.Choices[0].FewestChannels, uint32(0)
	for _, c := range o.Choices {
		list = append(list, fmt.Sprintf("%s %s %s", c.Algorithm, c.Protocol, format.Count(c.Calls)))
		fewest, most = min(fewest, c.FewestChannels), max(most, c.MostChannels)
	}
	if channels = fmt.Sprint(fewest); most != fewest {
		channels += fmt.Sprintf(" to %d", most)
	}
	return strings.Join(list, ", "), channels
}
