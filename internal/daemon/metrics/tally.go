// Package metrics exports what the daemon observes, and its own cost, to Prometheus.
package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/genai"
)

// maxPIDs bounds the processes whose target is remembered. Beyond it the map
// starts anew, and events of processes born before count for otherTargets.
const maxPIDs = 1 << 16

// CopyDecoder returns the direction and the bytes of a call that copies.
type CopyDecoder func(*event.Event) (cuda.Direction, uint64)

// Tally adds up calls per target and function. One goroutine adds batches, and
// any number read meanwhile: the lock is taken once per batch.
type Tally struct {
	functions func() []recording.Function
	decoder   func([]recording.Function) CopyDecoder

	mu         sync.Mutex
	copies     []copyKind // by function index
	timed      []bool     // likewise: its duration is recorded
	decode     CopyDecoder
	iterations *prometheus.HistogramVec // by the target's pid
	targets    map[uint32]*counts       // by the target's pid; 0 is otherTargets
	roots      map[uint32]*counts       // by process
	served     requestMetrics
}

// copyKind reports whether a function copies, and in which library it is.
type copyKind uint8

const (
	noCopy copyKind = iota
	driverCopies
	runtimeCopies
	copyKinds
)

// counts are the running totals of one target. The bytes of the two libraries are
// told apart: a copy by way of the runtime is seen in both, and must not count twice.
type counts struct {
	root  uint32
	calls recording.Tally
	bytes [copyKinds][len(directions{})]uint64

	rolling rolling

	serves bool // it has served a request
	labels genai.Labels
}

// rolling sums up the facts of a target, in ns.
type rolling struct {
	watched, busy uint64
	idle          map[string]uint64 // by cause
	hangs         uint64            // how many, not ns
}

// maxCauses bounds the series of one target: there are some thirty causes.
const maxCauses = 64

// Facts adds the facts that analysis found in a few seconds of a target.
func (t *Tally) Facts(f api.Facts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.targets[f.PID]
	if c == nil {
		return // the target was withdrawn
	}
	c.rolling.watched += f.Watched
	c.rolling.busy += min(f.Busy, f.Watched)
	c.rolling.hangs += f.Hangs
	if c.rolling.idle == nil {
		c.rolling.idle = map[string]uint64{}
	}
	for cause, ns := range f.Idle {
		if _, known := c.rolling.idle[cause]; known || len(c.rolling.idle) < maxCauses {
			c.rolling.idle[cause] += ns
		}
	}
	for _, ns := range f.Durations {
		t.iterations.WithLabelValues(pidLabel(f.PID)).Observe(seconds(ns))
	}
}

// directions are those that have a series; their place is the index of the bytes.
type directions [6]cuda.Direction

func allDirections() directions {
	return directions{cuda.Unknown, cuda.H2D, cuda.D2H, cuda.D2D, cuda.H2H, cuda.Peer}
}

// indexOf is a switch and no map: it is on the way of every copy.
func indexOf(d cuda.Direction) int {
	switch d {
	case cuda.H2D:
		return 1
	case cuda.D2H:
		return 2
	case cuda.D2D:
		return 3
	case cuda.H2H:
		return 4
	case cuda.Peer:
		return 5
	}
	return 0
}

// NewTally returns an empty tally. functions returns the table that event.Func
// indexes, as far as it goes now; decoder makes a decoder for a table.
func NewTally(functions func() []recording.Function, decoder func([]recording.Function) CopyDecoder) *Tally {
	return &Tally{
		functions: functions, decoder: decoder,
		targets: map[uint32]*counts{}, roots: map[uint32]*counts{}, served: newRequestMetrics(),
		iterations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:                           "inferscope_iteration_seconds",
			Help:                           "Latency of iterations, where recordings are kept: of what the program names itself, or does again and again. They are a sample where calls are recorded in windows only (inferscope_source_level): take quantiles, not rates.",
			Buckets:                        prometheus.ExponentialBuckets(0.001, 2, 16),
			NativeHistogramBucketFactor:    1.1,
			NativeHistogramMaxBucketNumber: 100,
		}, []string{"pid"}),
	}
}

// Target notes that process pid belongs to target root, from now on.
func (t *Tally) Target(pid, root uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.roots) >= maxPIDs {
		clear(t.roots)
	}
	t.roots[pid] = t.counts(root)
}

// Forget ends the series of a target.
func (t *Tally) Forget(root uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.targets[root]
	delete(t.targets, root)
	t.iterations.DeleteLabelValues(pidLabel(root))
	t.served.forget(root)
	for pid, of := range t.roots {
		if of == c {
			delete(t.roots, pid)
		}
	}
}

func (t *Tally) counts(root uint32) *counts {
	c := t.targets[root]
	if c == nil {
		c = &counts{root: root}
		t.targets[root] = c
	}
	return c
}

// Add counts a batch of events.
func (t *Tally) Add(batch []event.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var pid uint32 // events of one process come in runs: look its target up once
	var c *counts
	for i := range batch {
		e := &batch[i]
		if c == nil || e.PID != pid {
			pid, c = e.PID, t.of(e.PID)
		}
		if t.repeats(e) {
			continue
		}
		c.calls.Add(e)
		if kind := t.kindOf(e); kind != noCopy {
			direction, bytes := t.decode(e)
			c.bytes[kind][indexOf(direction)] += bytes
		}
	}
}

func (t *Tally) of(pid uint32) *counts {
	if c := t.roots[pid]; c != nil {
		return c
	}
	return t.counts(0)
}

// repeats reports whether e is the agent's record of a call that a probe records as well: functions whose duration is
// recorded are always probed.
func (t *Tally) repeats(e *event.Event) bool {
	if e.Kind != event.Call || e.Flags&event.Correlated == 0 {
		return false
	}
	if int(e.Func) >= len(t.copies) {
		t.learn(int(e.Func) + 1)
	}
	return t.timed[e.Func]
}

// kindOf returns the kind of copy that e is. An index beyond the table means that the table has grown.
func (t *Tally) kindOf(e *event.Event) copyKind {
	if e.Kind != event.Call {
		return noCopy
	}
	if int(e.Func) >= len(t.copies) {
		t.learn(int(e.Func) + 1)
	}
	return t.copies[e.Func]
}

// learn reads the table again. An index that it still lacks is never a copy: a source names a function before its first
// event.
func (t *Tally) learn(atLeast int) {
	table := t.functions()
	t.decode = t.decoder(table)
	t.copies = make([]copyKind, max(atLeast, len(table)))
	t.timed = make([]bool, len(t.copies))
	for i, f := range table {
		t.timed[i] = f.Timed
		switch {
		case f.Group != string(cuda.Copy):
		case f.Library == string(cuda.Runtime):
			t.copies[i] = runtimeCopies
		default:
			t.copies[i] = driverCopies
		}
	}
}
