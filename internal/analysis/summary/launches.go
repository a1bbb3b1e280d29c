package summary

import (
	"cmp"
	"slices"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// topShapes is how many sizes of launch a summary lists.
const topShapes = 10

// launches counts what is started on the device.
type launches struct {
	kernels, graphs uint64
	counts          map[launchKey]*uint64
	near            [512]nearLaunch // of late, by a hash
}

// nearLaunch is a launch as its event has it, and where such launches are counted.
type nearLaunch struct {
	process             int32
	fn                  uint16
	flags               event.Flags
	kernel, grid, block uint64
	count               *uint64
}

// launchKey is a kernel started in one size.
type launchKey struct {
	shapeKey
	kernel object
}

type shapeKey struct {
	grid, block [3]uint32
	shared      uint32
}

func newLaunches() *launches { return &launches{counts: map[launchKey]*uint64{}} }

// counter returns where launches like o are counted. What they have in common comes from a few words of the
// event: the map, whose key is long, is asked seldom.
func (l *launches) counter(o *op, e *event.Event) *uint64 {
	h := (e.Args[0] ^ e.Args[2]*0x9e3779b97f4a7c15 ^ e.Args[3]<<7 ^ uint64(o.Func)) * 0xbf58476d1ce4e5b9
	near := &l.near[h>>(64-9)]
	if near.count != nil && near.kernel == o.call.Handle && near.grid == e.Args[2] && near.block == e.Args[3] &&
		near.process == o.process &&
		near.fn == o.Func &&
		near.flags == e.Flags {
		return near.count
	}
	key := launchKey{shapeKey{o.call.Grid, o.call.Block, o.call.Shared}, object{o.process, o.call.Handle}}
	n := l.counts[key]
	if n == nil {
		n = new(uint64)
		l.counts[key] = n
	}
	*near = nearLaunch{o.process, o.Func, e.Flags, o.call.Handle, e.Args[2], e.Args[3], n}
	return n
}

func (l *launches) result(w Window, windows *Windows) Launches {
	out := Launches{
		Kernels:   l.kernels,
		Graphs:    l.graphs,
		PerSecond: windows.rate(l.kernels+l.graphs, w),
		Shapes:    []shape{},
	}
	shapes, kernels := map[shapeKey]*shape{}, map[object]bool{}
	for key, n := range l.counts {
		kernels[key.kernel] = true
		s := shapes[key.shapeKey]
		if s == nil {
			s = &shape{Grid: key.grid, Block: key.block, Shared: key.shared}
			shapes[key.shapeKey] = s
		}
		s.Count += *n
		s.Handles++
	}
	out.Handles, out.AllShapes = len(kernels), len(shapes)
	for _, s := range shapes {
		s.Share = share(s.Count, l.kernels)
		out.Shapes = append(out.Shapes, *s)
	}
	slices.SortFunc(out.Shapes, func(x, y shape) int {
		return cmp.Or(cmp.Compare(y.Count, x.Count), slices.Compare(x.Grid[:], y.Grid[:]),
			slices.Compare(x.Block[:], y.Block[:]), cmp.Compare(x.Shared, y.Shared))
	})
	out.Shapes = out.Shapes[:min(len(out.Shapes), topShapes)]
	return out
}
