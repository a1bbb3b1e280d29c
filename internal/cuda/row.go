package cuda

import "strings"

// The rows of the table are written with these few words, so that a line of the
// table reads like the prototype it describes.

// entry is a row for a call that is cheap and does not block.
func entry(g Group, name string, slots ...slot) Row {
	r := Row{Name: name, Group: g}
	copy(r.Slots[:], slots)
	return r
}

// timed is a row for a call that can block.
func timed(g Group, name string, slots ...slot) Row {
	r := entry(g, name, slots...)
	r.Timed = true
	return r
}

// shaped is a row for a launch whose arguments the probe lays out by itself.
func shaped(name string, s shape) Row {
	return Row{Name: name, Group: Launch, Shape: s}
}

// described is a row for a copy whose first parameter points to a descriptor.
// stream is the number of the stream parameter; 0 where there is none.
func described(name string, s shape, stream uint8) Row {
	r := Row{Name: name, Group: Copy, Timed: true, Shape: s}
	if stream != 0 {
		r.Slots[3] = slot{stream, meansStream}
	}
	return r
}

// made declares that the first slot points to where the call puts its result.
func (r Row) made() Row { r.Deref = true; return r }

// way gives a copy its direction.
func (r Row) way(d Direction) Row { r.Direction = d; return r }

// kind declares which parameter is the enum cudaMemcpyKind.
func (r Row) kind(param uint8) Row { r.Aux = slot{param, meansCopyKind}; return r }

// each gives the size of an element in bytes.
func (r Row) each(bytes uint8) Row { r.Element = bytes; return r }

// narrow marks the 32-bit signatures of the API before CUDA 3.2.
func (r Row) narrow() Row { r.Narrow = true; return r }

// only restricts the row to full exported names.
func (r Row) only(names ...string) Row { r.Only = names; return r }

// hot marks a row that is probed on demand only.
func (r Row) hot() Row { r.Hot = true; return r }

// shadowed marks a runtime row that the driver's row makes superfluous.
func (r Row) shadowed() Row { r.Shadowed = true; return r }

// Parameter selectors, named after what the parameter is.

func bytesAt(param uint8) slot    { return slot{param, meansBytes} }
func dstAt(param uint8) slot      { return slot{param, meansDst} }
func srcAt(param uint8) slot      { return slot{param, meansSrc} }
func streamAt(param uint8) slot   { return slot{param, meansStream} }
func handleAt(param uint8) slot   { return slot{param, meansHandle} }
func pointerAt(param uint8) slot  { return slot{param, meansPointer} }
func elementsAt(param uint8) slot { return slot{param, meansElements} }
func heightAt(param uint8) slot   { return slot{param, meansHeight} }

// Bits of the attach cookie: bpf/event.h, COOKIE_*.
const (
	cookieSelectors = 16
	cookieAux       = 32
	cookieShape     = 36
	cookieDeref     = 1 << 40
	cookieFrequent  = 1 << 41
)

// Frequent reports whether calls are only counted, but for some, where a thread makes them very
// often: some programs allocate and free 100,000 times a second.
func (r *Row) Frequent() bool { return r.Timed && (r.Group == Alloc || r.Group == Free) }

// Waits reports whether a call returns when the device has done something, launches a graph or a collective operation:
// what shows how far the program gets, and when it waits for the GPU.
func (r *Row) Waits() bool {
	return r.Timed &&
		(r.Group == Sync || r.Group == groupCollective || r.Group == Copy && !strings.Contains(r.Name, "Async") ||
			r.Group == Graph && strings.Contains(r.Name, "GraphLaunch"))
}

// Cookie returns the attach cookie of a probe on r, in the layout of bpf/event.h.
// index is the function's place in the recording's function table.
func (r *Row) Cookie(index uint16) uint64 {
	c := uint64(index)
	for i, s := range r.Slots {
		c |= uint64(s.Param&15) << (cookieSelectors + 4*i)
	}
	c |= uint64(r.Aux.Param&15) << cookieAux
	c |= uint64(r.Shape&15) << cookieShape
	if r.Deref {
		c |= cookieDeref
	}
	if r.Frequent() {
		c |= cookieFrequent
	}
	return c
}
