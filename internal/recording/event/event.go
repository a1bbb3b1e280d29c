// Package event is the Go side of bpf/event.h: one fact about a target with a time.
package event

// Size is the size of an Event in bytes, in the kernel's rings, in memory and on the wire.
const Size = 64

// Event is struct event of bpf/event.h, field for field; event_test.go compares
// it with the BTF of the compiled programs. It holds no pointers, so that the
// garbage collector never looks into a recorder full of them.
type Event struct {
	TS    uint64    // ns, CLOCK_MONOTONIC, at the entry of a call
	Dur   uint64    // ns from entry to return; 0 where Flags lacks Timed
	PID   uint32    // process, in the initial pid namespace
	TID   uint32    // thread, in the initial pid namespace
	Func  uint16    // Call: index into the recording's function table
	Kind  Kind      //
	Flags Flags     //
	Ret   int32     // result code of a timed call, else its auxiliary parameter
	Args  [4]uint64 // see bpf/event.h and package cuda, which decodes them
}

// Kind describes what an event is about. The values are enum event_kind of bpf/event.h.
type Kind uint8

// The kinds of events.
const (
	None   Kind = iota
	Call        // a CUDA API call
	Fork        // PID was born of process Args[0]
	Exec        // PID replaced its program; Args[1:3] hold the new comm, NUL-padded
	Exit        // the last thread of PID ended; Ret as wait(2) gives it
	Sample      // what TID was doing: Func is a SampleCause, Args[0] a stack, Args[1] a StackOrigin, Ret the CPU
	OffCPU      // TID was on no CPU; bpf/event.h, "Off-CPU intervals"

	// GPU activity, written by the agent; bpf/event.h, "GPU activity". TID is a CUPTI
	// stream id, Func device and context, Args[0] correlation and graph id.
	Kernel   // the GPU ran a kernel: Ret is an index + 1 into the recording's kernels
	Copy     // the GPU copied Args[2] bytes
	Set      // the GPU set Args[2] bytes
	Sync     // a thread or a stream waited for the GPU
	Overhead // CUPTI itself, or the driver's compiler, took time
	Range    // a named range of thread TID: Func is a RangeOrigin

	// calls of Func that have no event: Args[0] that the program made itself, Args[1] inside of such, in [TS, TS+Dur];
	// about one of Ret calls has one
	Skipped
)

// RequestChunk is a write of part of a streamed answer that carries content: Args[0] is the Number of a request,
// Args[1] how many such parts it has. Dur is the time since the one before it, at the first one since the request was
// read; it began at TS and was written at the end. User space alone makes it, so that bpf/event.h lacks it.
const RequestChunk Kind = 64

// Memory that a framework's allocators hand out: bpf/event.h, "Memory". Func is a MemoryDevice.
const (
	// at the end of [TS, TS+Dur]: Args[0] bytes in blocks, Args[1] in segments; Args[2] the most in between, Args[3]
	// before the attach
	Memory Kind = 80 + iota
	// since the attach: Args[0] allocations, Args[1] frees, Args[2] and Args[3] their bytes
	MemoryFlow
	// one chosen by chance, from TS to its free: Args[0] stack, Args[1] address, Args[2] bytes, Args[3] mean distance
	// of samples in bytes; Open: not freed
	Allocation
	// one that failed: Args[0] stack, Args[1] bytes asked for, Args[2] in blocks, Args[3] in segments
	OutOfMemory
)

// MemoryDevice is Func of what is about memory: c10::DeviceType or one of the driver's types in the low byte, the
// device's index in the high one; 255: none.
type MemoryDevice uint16

// Types of devices; c10/core/DeviceType.h.
const (
	CPUMemory  = 0
	CUDAMemory = 1
	HIPMemory  = 6
)

// Types of what the driver's own calls allocate, beyond those of c10: of all devices together.
const (
	DriverMemory  = 0x40 + iota // on a GPU
	PinnedMemory                // of the host, page-locked
	ManagedMemory               // moves between both
	ArrayMemory                 // arrays on a GPU: what their elements take, which the driver pads
	SharedMemory                // mapped, but allocated by another process or API
)

// Type returns the c10::DeviceType, or the type of what the driver's own calls allocate.
func (d MemoryDevice) Type() uint8 { return uint8(d) }

// Driver reports whether the driver's own calls allocated it, not a framework's allocator.
func (d MemoryDevice) Driver() bool { return d.Type() >= DriverMemory && d.Type() <= SharedMemory }

// Index returns the number of the device among those of its type; 0 where it has none.
func (d MemoryDevice) Index() int {
	if d>>8 == 255 {
		return 0
	}
	return int(d >> 8)
}

// HasStack reports whether Args[0] of events of a kind is an index + 1 into the recording's stacks.
func (k Kind) HasStack() bool { return k == Sample || k == Allocation || k == OutOfMemory }

// Flags qualify an event. The values are enum event_flags of bpf/event.h.
type Flags uint8

// The flags of an event.
const (
	Timed Flags = 1 << iota // Dur holds the time from entry to return
	Fault                   // an argument in user memory could not be read
	Deref                   // Args[0] is what the first argument pointed to at the return

	Correlated // a Call from the agent: Ret is its correlation id, not its result
	NCCL       // a Call that launches a kernel of NCCL: Args[1] also has its function, see NCCLFunction
)

// functionShift is where Args[1] of a launch with NCCL has the function; below it lies the stream.
const functionShift = 48

// NCCLFunction returns the index of the device function of NCCL that a launched kernel begins with; false where that is
// not known.
func (e *Event) NCCLFunction() (uint16, bool) {
	return uint16(e.Args[1] >> functionShift), e.Kind == Call && e.Flags&NCCL != 0
}

// LaunchStream returns the handle of the stream of a launch.
func (e *Event) LaunchStream() uint64 {
	if e.Flags&NCCL != 0 {
		return e.Args[1] & (1<<functionShift - 1)
	}
	return e.Args[1]
}

// Flags of OffCPU events; values of enum offcpu_flags of bpf/event.h.
const (
	Preempted       Flags = 8 << iota // another thread took the CPU
	Uninterruptible                   // state D
	MajorFault                        // a page fault that waited for the disk
	FromIRQ                           // woken from an interrupt: Args[1] is who ran then, not who woke it
	Open                              // still off the CPU at the end of the window
)

// Mark in Flags of an OffCPU event: it is not an interval; Func is an OffCPUMark.
const Mark Flags = 4

// OffCPUMark is what an OffCPU event with Mark says; enum offcpu_mark of bpf/event.h.
type OffCPUMark uint16

// The marks.
const (
	Born   OffCPUMark = iota // the thread was made at TS, and waited for its first CPU for Dur
	Died                     // the thread ended at TS
	Waited                   // it waited for a CPU when it was first looked at, at TS, and for Dur from then on
	Runs                     // it was on a CPU at TS
	// a sum of intervals in [TS, TS+Dur]: Args[0] ns blocked, Args[1] ns waiting for a CPU, Args[2] intervals; Ret and
	// Args[3]: why (ShortOf)
	Short
)

// Bits of Ret of a Short; bpf/event.h.
const (
	shortKnown  = 1 << 30
	shortOthers = 1 << 24
)

// ShortOf returns an interval that stands for those of a Short, for who wants to know what they were
// blocked in: its Func, Flags and Args[3] are theirs. known is false where they are of several reasons;
// others reports that threads of other processes ended them.
func ShortOf(e *Event) (one Event, others, known bool) {
	one = Event{
		TS:    e.TS,
		Dur:   e.Dur,
		PID:   e.PID,
		TID:   e.TID,
		Kind:  OffCPU,
		Func:  uint16(e.Ret),
		Flags: Timed | Flags(e.Ret>>16),
		Args:  [4]uint64{3: e.Args[3]},
	}
	return one, e.Ret&shortOthers != 0, e.Ret&shortKnown != 0
}

// Func of an OffCPU interval that is no system call's number.
const (
	NoSyscall   = 0xffff // the thread was in no system call
	Stopped     = 0xfffe // stopped by a signal or a tracer, wherever it was
	Unexplained = 0xfffd // why it left its CPU is not known; in imported recordings only, never of a BPF program
)

// SampleCause describes why a sample was taken; enum sample_cause of bpf/event.h.
type SampleCause uint16

// The causes of samples.
const (
	Clock  SampleCause = iota // the sampling clock: the thread was running
	Switch                    // the thread left its CPU: the OffCPU interval that begins here has this stack

	// Traced is of imported recordings only, never of a BPF program: from here to the next one of the thread, the
	// ranges and calls that another tool recorded are this stack, whether the thread ran or waited. Stack 0: it was in
	// none.
	Traced SampleCause = 0x100
)

// StackOrigin describes how a sample's stack was had; enum stack_origin of bpf/event.h.
type StackOrigin uint8

// The origins of stacks, from the best to the worst.
const (
	Whole   StackOrigin = iota // unwound to the thread's start
	Spliced                    // Python frames by an own walk, native ones as far as the unwinder went
	Python                     // Python frames and the leaf only
	Leaf                       // the leaf only
)

// Func of a Range: where it comes from; bpf/event.h, "GPU activity".
const (
	NVTXRange  = 0 // NVTX, by way of CUPTI: recorded while the agent records
	ScopeRange = 1 // the Python package: recorded all the time
)

// End returns when the call returned, in ns; for a call that was not timed, when it began.
func (e *Event) End() uint64 { return e.TS + e.Dur }
