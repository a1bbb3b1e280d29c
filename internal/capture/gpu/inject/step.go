package inject

import (
	"fmt"
	"strings"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
)

// Step is one of the steps of an injection.
type Step struct {
	Name string
	At   uint64 // CLOCK_MONOTONIC ns of its end
}

// called is the step that begins a stop.
const called = "called"

// maxSteps is room for the steps of one attempt that makes two system calls.
const maxSteps = 32

// step notes the end of a step. Where attempts before this one failed there is no room for all.
func (pl *plan) step(name string) {
	if len(pl.steps) == maxSteps {
		pl.steps = pl.steps[:copy(pl.steps, pl.steps[1:])]
	}
	pl.steps = append(pl.steps, Step{name, clock.Monotonic()})
	pl.hook(name)
}

// Between says how long each step took: "called, stopped 12µs, frame written 40µs; called, stopped 9µs".
func Between(steps []Step) string {
	var b strings.Builder
	for i, s := range steps {
		switch {
		case i == 0:
			b.WriteString(s.Name)
		case s.Name == called:
			b.WriteString("; " + called)
		default:
			fmt.Fprintf(&b, ", %s %v", s.Name, time.Duration(s.At-steps[i-1].At).Round(time.Microsecond))
		}
	}
	return b.String()
}
