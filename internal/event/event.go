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

// Kind says what an event is about. The values are enum event_kind of bpf/event.h.
type Kind uint8

// The kinds of events.
const (
	None Kind = iota
	Call      // a CUDA API call
	Fork      // PID was born of process Args[0]
	Exec      // PID replaced its program; Args[1:3] hold the new comm, NUL-padded
	Exit      // the last thread of PID ended; Ret as wait(2) gives it
)

// Flags qualify an event. The values are enum event_flags of bpf/event.h.
type Flags uint8

// The flags of an event.
const (
	Timed Flags = 1 << iota // Dur holds the time from entry to return
	Fault                   // an argument in user memory could not be read
	Deref                   // Args[0] is what the first argument pointed to at the return
)

// End returns when the call returned, in ns; for a call that was not timed, when it began.
func (e *Event) End() uint64 { return e.TS + e.Dur }
