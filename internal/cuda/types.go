// Package cuda knows the CUDA driver and runtime API: one table says for each
// function which group it belongs to, what its parameters mean and whether its
// duration matters. Probes are chosen from it and events are decoded with it, so
// that the two cannot disagree. It is pure: no kernel, no process, no file.
package cuda

// Library is one of the two libraries whose exported functions are probed.
type Library string

// The libraries.
const (
	Driver  Library = "driver"  // libcuda.so.1
	Runtime Library = "runtime" // libcudart.so
)

// Group sorts functions by what a person would call them.
type Group string

// The groups.
const (
	Init    Group = "init"
	Device  Group = "device"
	Context Group = "context"
	Alloc   Group = "alloc"
	Free    Group = "free"
	Copy    Group = "copy"
	Set     Group = "set"
	Launch  Group = "launch"
	Stream  Group = "stream"
	Sync    Group = "sync" // whatever blocks until the device is done: stream, event, context, device
	Event   Group = "event"
	Module  Group = "module"
	Graph   Group = "graph"
)

// Direction is the way a copy goes.
type Direction string

// The directions. Unknown is a copy whose pointers decide (cudaMemcpyDefault, cuMemcpy).
const (
	NoDirection Direction = ""
	H2D         Direction = "H2D"
	D2H         Direction = "D2H"
	D2D         Direction = "D2D"
	H2H         Direction = "H2H"
	Peer        Direction = "peer"
	Unknown     Direction = "unknown"
)

// Shape says how the probe lays out a call's arguments: enum call_shape of bpf/event.h.
type Shape uint8

// The shapes.
const (
	Params     Shape = iota // Row.Slots: plain parameters
	LaunchArgs              // cuLaunchKernel
	LaunchEx                // cuLaunchKernelEx
	RTLaunch                // cudaLaunchKernel
	RTLaunchEx              // cudaLaunchKernelExC
	Copy2D                  // CUDA_MEMCPY2D *
	Copy3D                  // CUDA_MEMCPY3D *
)

// Meaning says what a parameter is.
type Meaning uint8

// The meanings of parameters.
const (
	Nothing  Meaning = iota
	Bytes            // a size in bytes
	Dst              // destination address
	Src              // source address
	StreamID         // CUstream / cudaStream_t
	CopyKind         // enum cudaMemcpyKind
	Handle           // any other object: event, module, graph, context, pool
	Pointer          // an address that is allocated, freed or registered
	Elements         // a number of elements; Row.Element says how many bytes each has
	Height           // a number of rows: multiplies Bytes
)

// Slot takes one parameter of a call into one argument of its event.
type Slot struct {
	Param   uint8 // 1 to 15, counted as the C ABI counts them; 0: the slot is empty
	Meaning Meaning
}

// Row describes one function of the API, or with a trailing * in Name every
// function whose name begins so and that no other row describes. Version suffixes
// (_v2) and per-thread-default-stream suffixes (_ptsz, _ptds) never stand in Name.
type Row struct {
	Name      string
	Library   Library
	Group     Group
	Timed     bool      // probe the return too: the call can block
	Shape     Shape     //
	Slots     [4]Slot   // Shape Params only
	Aux       Slot      // a fifth, small parameter (at most 8 bits where Timed)
	Deref     bool      // Slots[0] points to the result: read it at the return (cuMemAlloc)
	Direction Direction // of copies whose name says it
	Element   uint8     // bytes per element where a slot means Elements
	Shadowed  bool      // a runtime function whose driver call is probed as well and costs a launch twice:
	// probed only in a process in which no driver library is probed
}
