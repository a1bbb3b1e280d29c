// Package profile is the source of CPU samples: at a fixed rate it notes what every
// running thread of a target does, with its whole stack: kernel, native and Python
// frames. A sample never loses its Python stack, because the BPF program that runs
// first on each (bpf/sample.bpf.c) walks the CPython frames itself, from the thread's
// own state, whatever the native code above them looks like. Native frames come from
// go.opentelemetry.io/ebpf-profiler behind a small interface (unwound.go); the
// source works without it, and says so.
//
// The way of a sample: the ring of the own program, and beside it the trace of the
// unwinder for the same sample; joined by thread and order (join.go), merged into one
// stack (splice.go), kept in a tree (table.go), handed to the daemon as an event whose
// Args[0] is the number of the stack. Names of native and kernel code are looked up
// when a recording is taken, those of Python code at once, because code objects move
// and die.
package profile

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/capture/symbol"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

// Bounds and defaults of Options.
const (
	minHz         = 1
	maxHz         = 2000
	DefaultHz     = 99 // not 100: nothing that a program does each 10 ms stays in step with it
	DefaultSwitch = 200
	maxSwitch     = 20_000
)

// Options are the settings of New.
type Options struct {
	Hz       int  // samples of each running thread a second of its running time, minHz to maxHz; 0: DefaultHz
	Cycles   bool // count hardware cycles instead of time where the CPU can; else the CPU clock
	Switches int  // samples a second and process where a thread leaves its CPU, up to maxSwitch; 0: none
	// Budget is what sampling may take of one CPU, as a share, at the switches of a process:
	// one that switches more often is sampled in slices. 0: whatever it takes. It needs Switches.
	Budget float64
	// OwnOnly leaves the native unwinder off: stacks are Python frames and the leaf.
	// It costs neither the seconds of its start nor its memory.
	OwnOnly bool
	// Helper is a command that starts a process of which RunHelper is the main program, to
	// hold the native unwinder; nil: it runs in this process, whose other goroutines then
	// feel it.
	Helper  []string
	Symbols *symbol.Table // names native code; nil: one with the default budget
	Log     *zap.Logger   // nil: silent

	noCPUs error // tests: why events of CPUs are refused
}

// check fills defaults in, or says what is out of bounds.
func (o *Options) check() error {
	if o.Hz == 0 {
		o.Hz = DefaultHz
	}
	if o.Hz < minHz || o.Hz > maxHz {
		return clierror.New(clierror.Usage, fmt.Sprintf("choose %d to %d", minHz, maxHz),
			fmt.Errorf("a sampling frequency of %d Hz is out of range", o.Hz))
	}
	if o.Switches < 0 || o.Switches > maxSwitch {
		return clierror.New(clierror.Usage, fmt.Sprintf("choose 0 to %d", maxSwitch),
			fmt.Errorf("%d samples of switches a second are out of range", o.Switches))
	}
	if !(o.Budget >= 0 && o.Budget <= 1) {
		return clierror.New(clierror.Usage, "choose 0 to 100 percent; 0 bounds nothing",
			fmt.Errorf("an overhead budget of %g%% is out of range", 100*o.Budget))
	}
	if o.Symbols == nil {
		o.Symbols = symbol.New(symbol.Options{})
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	return nil
}
