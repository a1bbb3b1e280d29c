package cuda

import (
	"math/bits"

	"github.com/inferscope/inferscope/internal/recording/event"
)

// Decode reports what e, an event of kind event.Call, did. It allocates nothing.
func (d *Decoder) Decode(e *event.Event) Call {
	var c Call
	d.DecodeTo(e, &c)
	return c
}

// DecodeTo is Decode for who decodes millions of events: a Call is twice the size of an event, and takes longer to copy
// than to make.
func (d *Decoder) DecodeTo(e *event.Event, c *Call) {
	l := &d.unknown
	if int(e.Func) < len(d.funcs) {
		l = &d.funcs[e.Func]
	}
	*c = Call{Func: &l.fn, Direction: l.direction, HasStream: l.hasStream}
	if e.Flags&event.Timed != 0 {
		c.Timed = true
		if e.Flags&event.Correlated == 0 { // the agent's calls have no result
			c.Result = e.Ret
		}
	}
	switch l.shape {
	case shapeParams:
		l.params(e, c)
	case shapeCopy2D, shapeCopy3D:
		l.descriptor(e, c)
	default:
		l.launch(e, c)
	}
	if e.Flags&event.Fault != 0 {
		l.doubt(c)
	}
	if c.HasStream {
		c.Stream = l.stream(c.Stream)
	}
}

// params gives the selected parameters their meaning.
func (l *layout) params(e *event.Event, c *Call) {
	args := [5]uint64{0, e.Args[0], e.Args[1], e.Args[2], e.Args[3] & l.last}
	if l.deref && e.Flags&event.Deref == 0 {
		// Not read: the argument is the address of the program's variable, not what the call made.
		args[1] = 0
		c.HasStream = c.HasStream && l.at[meansStream] != 1
	}
	c.Dst = args[l.at[meansDst]]
	c.Src = args[l.at[meansSrc]]
	c.Stream = args[l.at[meansStream]]
	c.Handle = args[l.at[meansHandle]]
	c.Pointer = args[l.at[meansPointer]]
	if l.hasBytes {
		c.Bytes, c.HasBytes = l.size(&args), true
	}
	if l.copyKind {
		c.Direction = directionOf(kind(e))
	}
}

// size multiplies what makes up a size in bytes.
func (l *layout) size(args *[5]uint64) uint64 {
	n := (args[l.at[meansBytes]] | args[l.at[meansElements]]) & l.sizes // a function has one of the two
	if l.at[meansHeight] != 0 {
		n = times(n, args[l.at[meansHeight]]&l.sizes)
	}
	return times(n, l.element)
}

// descriptor reads what the probe made of a CUDA_MEMCPY2D or CUDA_MEMCPY3D.
func (l *layout) descriptor(e *event.Event, c *Call) {
	c.Dst, c.Src, c.Bytes, c.HasBytes = e.Args[0], e.Args[1], e.Args[2], true
	c.Stream = e.Args[3] & lowBytes
	if c.Direction == NoDirection {
		c.Direction = directionOf(uint32(e.Args[3] >> 56))
	}
}

// launch unpacks the layout that bpf/event.h gives launches.
func (l *layout) launch(e *event.Event, c *Call) {
	grid, block := e.Args[2], uint32(e.Args[3])
	c.Handle = e.Args[0]
	c.Stream, c.HasStream = e.LaunchStream(), true
	c.Grid = [3]uint32{uint32(grid), uint32(grid >> 32 & 0xffff), uint32(grid >> 48)}
	c.Block = [3]uint32{block & 0x7ff, block >> 11 & 0x7ff, block >> 22}
	c.Shared = uint32(e.Args[3] >> 32)
}

// doubt takes back what a fault may have left at zero: zero is then no answer.
func (l *layout) doubt(c *Call) {
	c.HasBytes = c.HasBytes && c.Bytes != 0
	if l.copyKind && c.Direction == H2H {
		c.Direction = Unknown
	}
	if l.at[meansStream] != 0 || l.shape >= shapeLaunch && l.shape <= shapeRTLaunchEx {
		c.HasStream = c.HasStream && c.Stream != 0
	}
}

// lowBytes leaves out the byte of args[3] that holds a timed call's copy kind. No
// address that a program can have reaches into it.
const lowBytes = 1<<56 - 1

// kind is the enum cudaMemcpyKind. A call that could not be timed has it where
// entry-only calls have their auxiliary parameter.
func kind(e *event.Event) uint32 {
	if e.Flags&event.Timed != 0 {
		return uint32(e.Args[3] >> 56)
	}
	return uint32(e.Ret)
}

// stream gives the streams that need no creating one number each, whichever way
// the program names them.
func (l *layout) stream(s uint64) uint64 {
	switch {
	case s == legacyHandle:
		return LegacyStream
	case s == 0 && l.perThread:
		return PerThreadStream
	}
	return s
}

// directionOf translates enum cudaMemcpyKind.
func directionOf(kind uint32) Direction {
	switch kind {
	case 0:
		return H2H
	case 1:
		return H2D
	case 2:
		return D2H
	case 3:
		return D2D
	}
	return Unknown // cudaMemcpyDefault: the pointers decide
}

// times multiplies without wrapping: a program can ask for any size, and gets an
// error for the absurd ones.
func times(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	if high != 0 {
		return ^uint64(0)
	}
	return low
}
