package daemon

import (
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
)

// ranger is implemented by the source whose events are Ranges of event.ScopeRange: intervals that programs name without
// an agent. At most one source implements it, because Ret can index only one table of texts.
type ranger interface {
	// Ranges returns the names and attributes with these numbers, and for each number its index + 1
	// among them. It may be called from any goroutine.
	Ranges(numbers []int32) (texts []string, at map[int32]int32)
}

// nameScopes fills the tables of ranges with what the recording's scopes refer to, behind those
// of GPU activity; where there are none, there are no such tables yet.
func (r *held) nameScopes(source ranger) {
	if source == nil {
		return
	}
	names, attributes := r.references().names, r.references().attributes
	if len(names) == 0 {
		return
	}
	if r.meta.GPU == nil {
		r.meta.GPU = &recording.GPU{Mode: "off", Agents: []recording.Agent{}, Windows: []recording.GPUWindow{}}
	}
	texts, at := source.Ranges(sorted(names))
	r.meta.GPU.Ranges, r.scopeAt = merged(r.meta.GPU.Ranges, texts, at)
	r.meta.GPU.Attributes, r.attributeAt = source.Ranges(sorted(attributes))
}

// merged appends the missing texts to list, so that a name is stored once for all sources, and adjusts the indices of
// at.
func merged(list, texts []string, at map[int32]int32) (all []string, moved map[int32]int32) {
	all = slices.Clone(list)
	places := make(map[string]int32, len(list)+len(texts))
	for i, text := range list {
		places[text] = int32(i + 1)
	}
	for _, text := range texts {
		if places[text] == 0 {
			all = append(all, text)
			places[text] = int32(len(all))
		}
	}
	moved = make(map[int32]int32, len(at))
	for number, i := range at {
		moved[number] = places[texts[i-1]]
	}
	return all, moved
}
