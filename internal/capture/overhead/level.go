// Package overhead is what the governor of the overhead budget and the sources share: the levels
// of detail that a source has, and what its programs did so far.
package overhead

import "slices"

// Level is how much detail a source records, and so what it costs.
type Level struct {
	// Name is short and unique within the source: "individual", "aggregated", "49 Hz", "off".
	Name string
	// Loses says what a recording lacks at this level, for reports; "" at the first.
	Loses string
}

// Source is a source of events whose detail can be changed while it watches. Every method may be
// called from any goroutine at any time, also after the source was closed.
type Source interface {
	// Name is that of the daemon's source: "cpu samples", "scheduling", "cuda calls".
	Name() string
	// Levels returns the levels, the dearest first and "off" last. It never changes.
	Levels() []Level
	// Level returns the index of the level in force, for all targets.
	Level() int
	// SetLevel changes the level in force. Nothing is attached anew where a word that the programs
	// read is enough. An error leaves the level as it was.
	SetLevel(level int) error
	// Runs returns what the source did in the name of one process so far, or, for pid 0, of all
	// targets together. It only ever grows, but for a process that is no longer followed.
	Runs(pid uint32) Runs
}

// Runs is an account of what a source's programs did in the threads of targets.
type Runs struct {
	Count uint64 // runs of programs
	// NS is what these took of the targets' time: counts times what one run of its kind was
	// measured to cost, with the way into the program and out of it.
	NS uint64
	// At is, by level, what these would have taken if that level had been in force, in ns: at the level in force and
	// beyond it, since below more is recorded. nil: it is not known.
	At []uint64
}

// Add returns both accounts together.
func (r Runs) Add(o Runs) Runs {
	sum := Runs{Count: r.Count + o.Count, NS: r.NS + o.NS, At: slices.Clone(r.At)}
	if sum.At == nil {
		sum.At = slices.Clone(o.At)
		return sum
	}
	for i := range o.At {
		sum.At[i] += o.At[i]
	}
	return sum
}
