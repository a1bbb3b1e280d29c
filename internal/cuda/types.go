// Package cuda knows the CUDA driver and runtime API: one table says for each
// function which group it belongs to, what its parameters mean and whether its
// duration matters. Probes are chosen from it and events are decoded with it, so
// that the two cannot disagree. It is pure: no kernel, no process, no file.
//
// Parameter numbers come from cuda.h and cuda_runtime_api.h of CUDA 11.8, 12.9
// and 13.5; TestHeaders compares every row with them where they can be had.
package cuda

// Library is one of the libraries whose exported functions are probed.
type Library string

// The libraries.
const (
	Driver      Library = "driver"  // libcuda.so.1
	Runtime     Library = "runtime" // libcudart.so
	libraryNCCL Library = "nccl"    // libnccl.so.2, and AMD's librccl.so.1
)

// Group sorts functions by what a person would call them.
type Group string

// The groups.
const (
	groupInit    Group = "init"
	Device       Group = "device"
	groupContext Group = "context"
	Alloc        Group = "alloc"
	Free         Group = "free"
	groupMemory  Group = "memory" // asks about memory, or maps, pins, shares or prefetches it: nothing is made or freed
	Copy         Group = "copy"
	Set          Group = "set"
	Launch       Group = "launch" // of kernels; a host function in a stream is groupStream
	groupStream  Group = "stream"
	Sync         Group = "sync" // whatever blocks until the device is done: stream, event, context, device
	Event        Group = "event"
	Module       Group = "module"
	Graph        Group = "graph"
	// groupCollective is what moves data between GPUs, and what makes and ends the communicators for it.
	groupCollective Group = "collective"
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

// shape describes how the probe lays out a call's arguments: enum call_shape of bpf/event.h.
type shape uint8

// The shapes.
const (
	shapeParams     shape = iota // Row.Slots: plain parameters
	shapeLaunch                  // cuLaunchKernel
	shapeLaunchEx                // cuLaunchKernelEx
	shapeRTLaunch                // cudaLaunchKernel
	shapeRTLaunchEx              // cudaLaunchKernelExC
	shapeCopy2D                  // CUDA_MEMCPY2D *; Row.Slots[3] selects the stream where there is one
	// CUDA_MEMCPY3D * and CUDA_MEMCPY3D_PEER *, which agree in what is read; Slots[3] likewise
	shapeCopy3D
)

// meaning describes what a parameter is.
type meaning uint8

// The meanings of parameters.
const (
	meansNothing      meaning = iota
	meansBytes                // a size in bytes
	meansDst                  // destination address
	meansSrc                  // source address
	meansStream               // CUstream / cudaStream_t
	meansCopyKind             // enum cudaMemcpyKind
	meansHandle               // any other object: event, module, graph, context, pool, array
	meansPointer              // an address that is allocated, freed, mapped or registered
	meansElements             // a number of elements; Row.Element says how many bytes each has
	meansHeight               // a number of rows: multiplies bytes or elements
	meansCount                // a number of elements of meansDataType, or of ranks
	meansDataType             // enum ncclDataType_t
	meansCommunicator         // ncclComm_t
	meanings                  // how many there are
)

// slot takes one parameter of a call into one argument of its event.
type slot struct {
	Param   uint8 // 1 to 15, counted as the C ABI counts them; 0: the slot is empty
	Meaning meaning
}

// Row describes one function of the API, or with a trailing * in Name every
// function whose name begins so and that no other row describes. Names are
// unique. A row without Only stands for its name under every version suffix (_v2)
// and per-thread-default-stream suffix (_ptsz, _ptds) that no other row claims.
//
// A recording names rows and does not carry them. So a row whose slots change must
// change its name too, or older recordings would be read wrongly.
type Row struct {
	Name      string
	Library   Library
	Group     Group
	Timed     bool      // probe the return too: the call can block
	Shape     shape     //
	Slots     [4]slot   // into args[0] to args[3]; launches have a layout of their own and none of these
	Aux       slot      // a fifth, small parameter (at most 8 bits where Timed)
	Deref     bool      // Slots[0] points to the result: read it at the return (cuMemAlloc)
	Direction Direction // of copies whose name says it
	Element   uint8     // bytes per element where a slot means meansElements
	Narrow    bool      // sizes and counts are 32 bits wide (the API before CUDA 3.2): the upper half is not theirs
	Shadowed  bool      // a runtime function whose driver call is probed as well and says as much, so that
	// a second probe would only cost: probed only in a process in which no driver library is probed
	Hot bool // asked very often by frameworks and says nothing about time or memory: probed only on demand
	// Only restricts a row to these full exported names, because their signature
	// differs from that of their siblings. "name@13" claims a name in a libcudart of
	// major version 13 and newer: CUDA 13 changed signatures under unchanged names.
	Only []string
}

// Glob reports whether the row stands for all functions whose names begin with its name.
func (r *Row) Glob() bool { return len(r.Name) > 0 && r.Name[len(r.Name)-1] == '*' }
