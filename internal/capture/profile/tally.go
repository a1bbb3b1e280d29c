package profile

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// tally counts samples by how their stacks were had.
type tally struct {
	origins   [4]atomic.Uint64 // by event.StackOrigin
	switches  atomic.Uint64
	malformed atomic.Uint64 // records that were no samples

	mu   sync.Mutex
	cuts map[string]uint64 // spliced samples, by where and why the native stack ends
}

// maxCuts bounds the places where stacks end: 100 bytes each.
const maxCuts = 256

func (t *tally) add(p *pending, origin event.StackOrigin) {
	t.origins[origin].Add(1)
	if p.cause == event.Switch {
		t.switches.Add(1)
	}
	if origin == event.Spliced && p.trace != nil && p.trace.cut != "" {
		t.cut(p.trace, len(p.returns) > 0)
	}
}

// cut notes where and why a native stack ends: where it has Python frames, the merged
// stack has no room to say so.
func (t *tally) cut(u *unwound, probed bool) {
	where := "unknown code"
	if n := len(u.frames); n > 0 && u.frames[n-1].module != nil {
		where = u.frames[n-1].module.base()
	}
	key := where + ": " + u.cut
	if probed {
		key = where + ": " + atProbe
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cuts == nil {
		t.cuts = map[string]uint64{}
	}
	if _, ok := t.cuts[key]; ok || len(t.cuts) < maxCuts {
		t.cuts[key]++
	}
}

// mostCut reports where most of the spliced stacks end; "" where none does.
func (t *tally) mostCut() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	best, most := "", uint64(0)
	for key, n := range t.cuts {
		if n > most || n == most && key < best {
			best, most = key, n
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (%d end in %s)", most, best)
}

// shares reports which part of the samples came which way.
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
			if i == int(event.Spliced) {
				what += t.mostCut()
			}
			parts = append(parts, fmt.Sprintf("%.1f%% %s", 100*float64(n[i])/float64(all), what))
		}
	}
	return fmt.Sprintf("%d samples: %s", all, strings.Join(parts, ", "))
}
