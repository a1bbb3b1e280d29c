package diagnose

import (
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/recording"
)

// callers finds the functions from which the program made CUDA calls, by samples of threads inside these calls, running
// or about to block. The event of a call has its time, but not its caller.
type callers struct {
	byCall map[string]*tally // by function: samples by stack
}

// newCallers reads all samples once, and each of their stacks once.
func newCallers(x *threads.Index) *callers {
	rec := x.Rec
	counts := make([]uint64, len(rec.Meta.Stacks)+1)
	x.Stacks(func(s *threads.Sample) {
		if uint64(s.Stack) < uint64(len(counts)) {
			counts[s.Stack]++
		}
	})
	c := &callers{byCall: map[string]*tally{}}
	for stack, n := range counts {
		if n == 0 {
			continue
		}
		for i := range threads.Walk(rec, uint64(stack)) {
			f := &rec.Meta.Frames[i]
			if f.Kind != recording.NativeFrame || !isCUDA(f.Name) {
				continue
			}
			name := plainCall(f.Name)
			if c.byCall[name] == nil {
				c.byCall[name] = &tally{}
			}
			c.byCall[name].add(uint64(stack), n)
		}
	}
	return c
}

// isCUDA reports whether a native function is one of CUDA's: cuLaunchKernel, cudaMemcpy.
func isCUDA(name string) bool {
	rest := strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(name, "hip"), "cu"), "da")
	return len(rest) < len(name) && rest != "" && rest[0] >= 'A' && rest[0] <= 'Z'
}

// plainCall removes versions and variants from a function's name: cuMemcpyHtoD_v2, cudaMemcpyAsync_ptsz.
func plainCall(name string) string {
	name, _, _ = strings.Cut(name, "_")
	name, _, _ = strings.Cut(name, "(")
	return name
}

// callersOf returns the functions from which a call was made, by descending number of samples; time is that number.
func (a *analysis) callersOf(call string) []dominant {
	if a.callers == nil {
		a.callers = newCallers(a.t.Index)
	}
	t := a.callers.byCall[plainCall(call)]
	if t == nil {
		return nil
	}
	t.flush() // both are copies, with one map
	g := group{stacks: *t, seen: *t}
	return slices.DeleteFunc(g.functions(a.places), func(d dominant) bool {
		return !d.isCode() ||
			d.kind != recording.PythonFrame &&
				isCUDA(d.name) // it ends in the kernel, or at the call itself: nobody knows who made it
	})
}
