package metrics

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// otherTargets stands for functions beyond maxFunctions.
const otherTargets = "other"

// maxFunctions bounds the series of one target. The table names some hundred
// functions; only a library that claims thousands of names gets near.
const maxFunctions = 1024

// functionKey is what labels a function: versions and per-thread variants of one
// row of the CUDA table are one function.
type functionKey struct {
	name, library, group string
}

// functionTotal is the total of one function in one target.
type functionTotal struct {
	functionKey
	recording.Count
}

// targetTotals is what one target did.
type targetTotals struct {
	pid       uint32
	functions []functionTotal // ordered by name
	bytes     map[cuda.Direction]uint64
	syncNanos uint64
	kernels   uint64 // launches of kernels that were seen
	graphs    uint64 // and of graphs
	rolling   rolling
}

// totals copies what was counted so far, ordered by pid.
func (t *Tally) totals() []targetTotals {
	table := t.functions()
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]targetTotals, 0, len(t.targets))
	for pid, c := range t.targets {
		functions := byFunction(c.calls.Counts(), table)
		kernels, graphs := launched(functions)
		out = append(out, targetTotals{
			pid: pid, functions: functions, bytes: c.copied(),
			syncNanos: synchronised(functions), kernels: kernels, graphs: graphs,
			rolling: rolling{c.rolling.watched, c.rolling.busy, maps.Clone(c.rolling.idle), c.rolling.hangs},
		})
	}
	slices.SortFunc(out, func(a, b targetTotals) int { return cmp.Compare(a.pid, b.pid) })
	return out
}

func byFunction(counted []recording.Count, table []recording.Function) []functionTotal {
	sums := map[functionKey]recording.Count{}
	for i, n := range counted {
		if n.Calls == 0 || i >= len(table) {
			continue
		}
		k := keyOf(table[i])
		if _, known := sums[k]; !known && len(sums) >= maxFunctions {
			k.name = otherTargets
		}
		sums[k] = plus(sums[k], n)
	}
	out := make([]functionTotal, 0, len(sums))
	for k, n := range sums {
		out = append(out, functionTotal{k, n})
	}
	slices.SortFunc(out, func(a, b functionTotal) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.library, b.library), cmp.Compare(a.group, b.group))
	})
	return out
}

func plus(a, b recording.Count) recording.Count {
	return recording.Count{
		Calls:  a.Calls + b.Calls,
		Timed:  a.Timed + b.Timed,
		Failed: a.Failed + b.Failed,
		Nanos:  a.Nanos + b.Nanos,
	}
}

// keyOf names a function by its row, unless that stands for many functions.
func keyOf(f recording.Function) functionKey {
	name := f.Base
	if name == "" || strings.HasSuffix(name, "*") {
		name = f.Name
	}
	return functionKey{clean(name), clean(f.Library), clean(f.Group)}
}

// clean makes a label's value out of a string that a target may have chosen.
func clean(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), 128)], "\uFFFD")
}

// copied returns the bytes of one library: the driver sees every copy, those of
// the runtime too, so the runtime counts only where it saw more, which is where
// no driver library could be probed.
func (c *counts) copied() map[cuda.Direction]uint64 {
	sum := func(k copyKind) (n uint64) {
		for _, b := range c.bytes[k] {
			n += b
		}
		return n
	}
	kind := driverCopies
	if sum(runtimeCopies) > sum(driverCopies) {
		kind = runtimeCopies
	}
	out := map[cuda.Direction]uint64{}
	for i, d := range allDirections() {
		if n := c.bytes[kind][i]; n > 0 {
			out[d] = n
		}
	}
	return out
}

// launched counts launches of kernels and of graphs, those of the runtime, which reach the driver, once.
func launched(functions []functionTotal) (kernels, graphs uint64) {
	k, g := map[string]uint64{}, map[string]uint64{}
	for _, f := range functions {
		switch {
		case f.group == string(cuda.Launch):
			k[f.library] += f.Calls
		case f.group == string(cuda.Graph) && strings.Contains(f.name, "GraphLaunch"):
			g[f.library] += f.Calls
		}
	}
	driver, runtime := string(cuda.Driver), string(cuda.Runtime)
	return max(k[driver], k[runtime]), max(g[driver], g[runtime])
}

// synchronised adds up the time that threads spent in calls that wait for the
// device, in ns. As with copies, the larger of the two libraries' sums counts:
// the runtime's calls last a little longer than the driver's within them.
func synchronised(functions []functionTotal) uint64 {
	sums := map[string]uint64{}
	for _, f := range functions {
		if f.group == string(cuda.Sync) {
			sums[f.library] += f.Nanos
		}
	}
	return max(sums[string(cuda.Driver)], sums[string(cuda.Runtime)])
}

// DecodeCopies makes a CopyDecoder for a table of functions. A copy that is known
// to have failed has no bytes.
func DecodeCopies(functions []recording.Function) CopyDecoder {
	d := cuda.NewDecoder(functions)
	return func(e *event.Event) (cuda.Direction, uint64) {
		c := d.Decode(e)
		if c.Failed() {
			return c.Direction, 0
		}
		return c.Direction, c.Bytes
	}
}
