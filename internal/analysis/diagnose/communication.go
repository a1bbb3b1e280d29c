package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/summary/gpu"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/analysis/topology"
	"github.com/inferscope/inferscope/internal/format"
)

// collective holds all kernels of one collective operation.
type collective struct {
	name        string
	count, time uint64 // time is summed over kernels, ns
	longest     *gpu.Kernel
}

// collectives returns the collective operations among the kernels, the longest first.
func (a *analysis) collectives() []collective {
	if a.gpu == nil {
		return nil
	}
	by := map[string]*collective{}
	for i := range a.gpu.Kernels.Rows {
		k := &a.gpu.Kernels.Rows[i]
		if !timeline.IsCommunication(k.Full) {
			continue
		}
		name := timeline.Collective(k.Full)
		c := by[name]
		if c == nil {
			c = &collective{name: name, longest: k} // rows come in the order of their time
			by[name] = c
		}
		c.count += k.Count
		c.time += k.Time
	}
	var out []collective
	for _, name := range slices.Sorted(maps.Keys(by)) {
		out = append(out, *by[name])
	}
	slices.SortStableFunc(out, func(x, y collective) int { return cmp.Compare(y.time, x.time) })
	return out
}

// communicationTitle names the longest operations.
func (a *analysis) communicationTitle() string {
	var names []string
	for _, c := range a.collectives() {
		if len(names) < 2 && c.name != "communication" {
			names = append(names, c.name)
		}
	}
	what := "Communication between GPUs"
	if len(names) > 0 {
		what += " (" + strings.Join(names, ", ") + ")"
	}
	return what + " is not covered by computing"
}

// communication returns how much communication overlaps with computation, what it is, and the maximum gain.
func (a *analysis) communication(f *Finding) {
	add := func(format string, args ...any) {
		f.Evidence = append(f.Evidence, Evidence{Text: fmt.Sprintf(format, args...)})
	}
	m := &a.total
	add(
		"GPUs communicated for %s, of which no kernel computed for %s: %s is covered.",
		format.Span(
			m.talked,
		),
		format.Span(m.exposed()),
		format.Percent(share(m.talked-min(m.talked, m.exposed()), m.talked)),
	)
	for i, c := range a.collectives() {
		if i == maxRows {
			break
		}
		add(
			"%s: %s, %s in all, %s on average, %s at most (%s).",
			c.name,
			format.Plural(c.count, "kernel", "kernels"),
			format.Span(c.time),
			format.Span(
				c.time/max(1, c.count),
			),
			format.Span(c.longest.Max),
			format.Clean(orElse(c.longest.Name, "a kernel")),
		)
	}
	if n := uint64(len(a.t.Exchanges)); n > 0 {
		time := uint64(0)
		for _, x := range a.t.Exchanges {
			time += a.t.Duration(&a.t.Activities[x.Activity])
		}
		add("Copy engines: %s for NCCL, %s in all.", format.Plural(n, "copy", "copies"), format.Span(time))
	}
	if r := a.ranks; r.Enough() {
		add("In %s in which all %d ranks took part, a rank waited for the last one for %s on average, "+
			"%s of the time that collectives took.",
			format.Plural(r.Sets, "collective", "collectives"), len(r.Members),
			format.Span(r.Wait/uint64(r.Sets*len(r.Members))), format.Percent(min(1, share(r.Wait, m.talked))))
	}
	if a.topology != nil {
		for i := range a.topology.Links {
			if l := &a.topology.Links[i]; !l.NVLink() && !slices.ContainsFunc(
				a.topology.Links[:i],
				func(x topology.Link) bool { return x.Kind == l.Kind },
			) {
				add("GPUs are connected without NVLink: GPU %s and GPU %s by %s.", a.topology.GPUs[l.A].Name(),
					a.topology.GPUs[l.B].Name(), l.Text)
			}
		}
	}
	if left := m.Time - min(m.Time, m.exposed()); left > 0 {
		add(
			"Were all of it covered, the same work would take %s instead of %s: at most %.2fx.",
			format.Span(left),
			format.Span(m.Time),
			float64(m.Time)/float64(left),
		)
	}
}
