package cuda

import (
	"strings"

	"github.com/inferscope/inferscope/internal/recording"
)

// Handles of the streams that need no creating, as Call.Stream shows them
// (CU_STREAM_PER_THREAD of cuda.h). CU_STREAM_LEGACY, 1, is shown as 0.
const (
	LegacyStream    uint64 = 0 // the device's default stream
	PerThreadStream uint64 = 2 // the calling thread's default stream
	legacyHandle    uint64 = 1
)

// Func is what every call of a function has in common.
type Func struct {
	Name    string // as exported, e.g. cuMemcpyHtoDAsync_v2
	Base    string // its row in the table, e.g. cuMemcpyHtoDAsync
	Library Library
	Group   Group
}

// Call is an event in the words of the CUDA API. What a call does not have is zero.
type Call struct {
	*Func               // never nil in a call that a Decoder made
	Direction Direction // of a copy
	Bytes     uint64    // copied, set, allocated, mapped, registered; see HasBytes
	Dst, Src  uint64    // addresses of a copy or set
	Pointer   uint64    // the address allocated, freed, mapped or registered
	Stream    uint64    // LegacyStream, PerThreadStream or a handle; see HasStream
	Handle    uint64    // the function launched, or the event, module, graph, context, pool or array concerned
	Grid      [3]uint32 // blocks of a launch
	Block     [3]uint32 // threads of a block; each clipped to the API's limits
	Shared    uint32    // dynamic shared memory of a launch, bytes
	Result    int32     // CUresult or cudaError_t where Timed, else 0
	Timed     bool      // the call's duration and result are known
	HasBytes  bool      // Bytes is known
	HasStream bool      // Stream is known: the call names one, or works on the default stream
}

// Failed reports whether the call is known to have returned an error.
func (c *Call) Failed() bool { return c.Timed && c.Result != 0 }

// Decoder turns a recording's events into calls. It may be used by several
// goroutines at once.
type Decoder struct {
	funcs   []layout
	unknown layout
}

// layout is what decoding needs of one function, found once.
type layout struct {
	fn        Func
	shape     shape
	direction Direction
	at        [meanings]uint8 // by meaning: 1 to 4 for args[0] to args[3], 0 for none
	hasBytes  bool
	hasStream bool // in args, or the default stream by definition
	perThread bool
	copyKind  bool   // the direction is an argument
	deref     bool   // args[0] was to be read at the return
	element   uint64 // bytes
	sizes     uint64 // mask of sizes and counts
	last      uint64 // mask of args[3]: its top byte can hold a copy kind
}

// NewDecoder prepares to decode events that index functions, as a recording's Meta
// has them. A function whose row this version does not know (a newer daemon's)
// decodes to a call without arguments.
func NewDecoder(functions []recording.Function) *Decoder {
	d := &Decoder{funcs: make([]layout, len(functions))}
	rows := make(map[string]*Row)
	for i := range theIndex().rows {
		rows[theIndex().rows[i].Name] = &theIndex().rows[i]
	}
	for i, f := range functions {
		d.funcs[i] = newLayout(f, rows[f.Base])
	}
	d.unknown = newLayout(recording.Function{Name: "unknown", Base: "unknown"}, nil)
	return d
}

func newLayout(f recording.Function, row *Row) layout {
	l := layout{
		fn:        Func{Name: f.Name, Base: f.Base, Library: Library(f.Library), Group: Group(f.Group)},
		perThread: perThread(f.Name),
		element:   1,
		sizes:     ^uint64(0),
		last:      ^uint64(0),
	}
	if row == nil || row.Library != l.fn.Library || row.Timed != f.Timed {
		return l
	}
	for i, s := range row.Slots {
		l.at[s.Meaning] = uint8(i + 1)
	}
	l.at[meansNothing] = 0
	l.shape = row.Shape
	l.direction = row.Direction
	l.deref = row.Deref
	l.hasBytes = l.at[meansBytes]|l.at[meansElements] != 0
	l.hasStream = l.at[meansStream] != 0 || row.onDefaultStream()
	l.copyKind = row.Aux.Meaning == meansCopyKind
	l.element = max(1, uint64(row.Element))
	if row.Narrow {
		l.sizes = 1<<32 - 1
	}
	if f.Timed && l.copyKind {
		l.last = lowBytes
	}
	return l
}

// onDefaultStream reports whether the function works on the default stream without
// naming it: all copies and sets do that are not called Async.
func (r *Row) onDefaultStream() bool {
	return (r.Group == Copy || r.Group == Set) && !strings.Contains(r.Name, "Async")
}
