package diagnose

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// amount is the amount of work of an iteration, from its scope: scope("step", batch=8, tokens=128).
type amount struct {
	Name   string  `json:"name"`       // of the attribute
	Mean   float64 `json:"mean"`       // of the iterations that have it
	PerSec float64 `json:"per_second"` // while iterations were recorded
}

// sum is one of the amounts of ranges.
type sum struct {
	of float64
	n  uint64 // ranges that have it
}

// isAmount reports whether an attribute is a number of tokens or a batch size, and not a limit.
func isAmount(name string) bool {
	name = strings.ToLower(name)
	return name == "batch" || name == "batch_size" || name == "tokens" ||
		strings.HasSuffix(name, "_tokens") && !strings.HasPrefix(name, "max_")
}

// amountsIn returns the amounts among the attributes of a scope, a JSON object.
func amountsIn(text string) map[string]float64 {
	var all map[string]any
	if json.Unmarshal([]byte(text), &all) != nil {
		return nil
	}
	out := map[string]float64{}
	for name, v := range all {
		if n, ok := v.(float64); ok && n >= 0 && isAmount(name) {
			out[name] = n
		}
	}
	return out
}

// count adds the amounts of a range. read caches the parsed attributes.
func (r *namedRanges) count(e *event.Event, attributes []string, read map[uint64]map[string]float64) {
	i := e.Args[3]
	if e.Func != event.ScopeRange || i == 0 || i > uint64(len(attributes)) {
		return
	}
	amounts, ok := read[i]
	if !ok {
		amounts = amountsIn(attributes[i-1])
		read[i] = amounts
	}
	for name, v := range amounts {
		if r.amounts == nil {
			r.amounts = map[string]sum{}
		}
		s := r.amounts[name]
		r.amounts[name] = sum{s.of + v, s.n + 1}
	}
}

// amountsOf returns the amounts of ranges, by name.
func (r *namedRanges) amountsOf() []amount {
	var out []amount
	for _, name := range slices.Sorted(maps.Keys(r.amounts)) {
		s := r.amounts[name]
		a := amount{Name: name, Mean: s.of / float64(s.n)}
		if r.seen > 0 {
			a.PerSec = s.of / float64(r.seen) * 1e9
		}
		out = append(out, a)
	}
	const few = 4
	slices.SortStableFunc(out, func(x, y amount) int {
		return cmp.Compare(r.amounts[y.Name].n, r.amounts[x.Name].n)
	})
	return out[:min(few, len(out))]
}
