package sampler

import (
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/inferscope/inferscope/internal/event"
)

// tally counts samples by how their stacks were had.
type tally struct {
	origins   [4]atomic.Uint64 // by event.StackOrigin
	switches  atomic.Uint64
	malformed atomic.Uint64 // records that were no samples
}

func (t *tally) add(p *pending, origin event.StackOrigin) {
	t.origins[origin].Add(1)
	if p.cause == event.Switch {
		t.switches.Add(1)
	}
}

// shares says which part of the samples came which way.
func (t *tally) shares() string {
	var n [4]uint64
	var all uint64
	for i := range n {
		n[i] = t.origins[i].Load()
		all += n[i]
	}
	if all == 0 {
		return "no sample yet"
	}
	var parts []string
	for i, what := range []string{"whole", "spliced", "Python and leaf only", "leaf only"} {
		if n[i] > 0 {
			parts = append(parts, fmt.Sprintf("%.1f%% %s", 100*float64(n[i])/float64(all), what))
		}
	}
	return fmt.Sprintf("%d samples: %s", all, strings.Join(parts, ", "))
}
