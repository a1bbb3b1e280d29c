package recordtest

import (
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// Python returns a frame of Python code.
func Python(name, file string, line uint32) recording.Frame {
	return recording.Frame{Kind: recording.PythonFrame, Name: name, File: file, Line: line}
}

// Native returns a frame of native code.
func Native(name, file string) recording.Frame {
	return recording.Frame{Kind: recording.NativeFrame, Name: name, File: file}
}

// Kernel returns a frame of the kernel.
func Kernel(name string) recording.Frame {
	return recording.Frame{Kind: recording.KernelFrame, Name: name}
}

// Stack adds a stack, leaf first, and returns what Args[0] of its samples is.
func (b *Builder) Stack(leafFirst ...recording.Frame) uint64 {
	at := int32(-1)
	for _, f := range slices.Backward(leafFirst) {
		node := recording.Node{Parent: at, Frame: b.frame(f)}
		i := slices.Index(b.Meta.Stacks, node)
		if i < 0 {
			i = len(b.Meta.Stacks)
			b.Meta.Stacks = append(b.Meta.Stacks, node)
		}
		at = int32(i)
	}
	return uint64(at + 1)
}

func (b *Builder) frame(f recording.Frame) uint32 {
	i := slices.Index(b.Meta.Frames, f)
	if i < 0 {
		i = len(b.Meta.Frames)
		b.Meta.Frames = append(b.Meta.Frames, f)
	}
	return uint32(i)
}

// Sample adds a sample of a running thread of process PID.
func (b *Builder) Sample(tid uint32, ts, stack uint64, origin event.StackOrigin) *Builder {
	return b.Event(event.Event{
		TS:   ts,
		PID:  PID,
		TID:  tid,
		Kind: event.Sample,
		Func: uint16(event.Clock),
		Args: [4]uint64{stack, uint64(origin)},
	})
}

// Samples adds n samples of one stack, evenly over [from, to).
func (b *Builder) Samples(tid uint32, from, to, n, stack uint64, origin event.StackOrigin) *Builder {
	for i := range n {
		b.Sample(tid, from+(2*i+1)*(to-from)/(2*n), stack, origin)
	}
	return b
}

// Off is one time that a thread of process PID was off its CPU.
type Off struct {
	TID     uint32
	TS, Dur uint64 // ns
	Blocked uint64 // ns from TS to the wake-up; 0: none was seen, it was blocked all the time
	Call    uint16 // system call number
	Flags   event.Flags
	By      [2]uint32 // pid and tid of who woke it, or took its CPU
	Arg     uint64    // first argument of the call
	Inode   uint64    // of the file that it is about,
	Type    uint64    // and S_IFMT >> 12 of its mode
	CPUs    [2]uint16 // left and taken
	Stack   uint64    // where it went to sleep; 0: not sampled
}

// Off adds an off-CPU interval, and the sample at its beginning where it has a stack.
func (b *Builder) Off(o Off) *Builder {
	if o.Stack != 0 {
		b.Event(event.Event{
			TS:   o.TS,
			PID:  PID,
			TID:  o.TID,
			Kind: event.Sample,
			Func: uint16(event.Switch),
			Args: [4]uint64{o.Stack},
		})
	}
	third := o.Inode | o.Type<<48
	return b.Event(event.Event{
		TS: o.TS, Dur: o.Dur, PID: PID, TID: o.TID, Kind: event.OffCPU, Func: o.Call, Flags: o.Flags | event.Timed,
		Ret:  int32(uint32(o.CPUs[0]) | uint32(o.CPUs[1])<<16),
		Args: [4]uint64{o.Blocked, uint64(o.By[0])<<32 | uint64(o.By[1]), o.Arg, third},
	})
}

// Runs notes that a thread was on a CPU at ts: without it and without intervals it is not known.
func (b *Builder) Runs(tid uint32, ts uint64) *Builder {
	return b.Event(
		event.Event{TS: ts, PID: PID, TID: tid, Kind: event.OffCPU, Func: uint16(event.Runs), Flags: event.Mark},
	)
}
