package export

import (
	"slices"
	"strings"

	"github.com/google/pprof/profile"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/recording"
)

// locations returns the frames of a sample, the leaf first. A leaf of several parts, apart by NUL, the outermost
// first, stands before the frames of the stack.
func (x *profiler) locations(k sampleKey) []*profile.Location {
	var out []*profile.Location
	if k.leaf != "" {
		for _, name := range slices.Backward(strings.Split(k.leaf, "\x00")) {
			out = append(out, x.named(name))
		}
	}
	stack, ok := x.stacks[k.stack]
	if !ok {
		for f := range threads.Walk(x.v.rec, k.stack) {
			stack = append(stack, x.frame(x.v.rec.Meta.Frames[f]))
		}
		x.stacks[k.stack] = stack
	}
	out = append(out, stack...)
	if len(out) == 0 {
		out = append(out, x.named("[no stack]"))
	}
	return out
}

// named returns the location of what is no frame.
func (x *profiler) named(name string) *profile.Location {
	l := x.extra[name]
	if l == nil {
		l = x.location(&profile.Function{Name: name, SystemName: name}, 0)
		x.extra[name] = l
	}
	return l
}

func (x *profiler) frame(f recording.Frame) *profile.Location {
	l := x.functions[f]
	if l == nil {
		fn := &profile.Function{Name: f.Name, SystemName: f.Name, Filename: f.File}
		switch f.Kind {
		case recording.KernelFrame:
			fn.Filename = "[kernel]"
		case recording.ErrorFrame:
			fn.Name = "[" + f.Name + "]"
		}
		l = x.location(fn, int64(f.Line))
		x.functions[f] = l
	}
	return l
}

func (x *profiler) location(fn *profile.Function, line int64) *profile.Location {
	fn.ID = uint64(len(x.p.Function)) + 1
	x.p.Function = append(x.p.Function, fn)
	l := &profile.Location{ID: uint64(len(x.p.Location)) + 1, Line: []profile.Line{{Function: fn, Line: line}}}
	x.p.Location = append(x.p.Location, l)
	return l
}
