// Package annotate is the source of the scopes that a program names with the Python
// package inferscope: it finds the memory in which the package writes them, says
// that somebody reads it, and makes events of kind Range of what it finds there.
//
// The memory is described in python/inferscope/_ring.py. It is the target's, which
// may write to it at any time: a record is copied once and then checked, and
// names, counts and times are bounded.
package annotate

// memfd is what the package calls its memory.
const memfd = "inferscope-scopes"

// The layout of the memory, python/inferscope/_ring.py; offsets and sizes in bytes.
const (
	magic       = "ISSCOPE1"
	headerBytes = 4096
	recordBytes = 64

	headRecord = 8  // u32: recordBytes
	headSlots  = 12 // u32: a power of two
	headNames  = 16 // u64: bytes of the names' area
	headPID    = 24 // u64: the process, as it sees itself
	headLease  = 32 // u64: until when somebody records, ns of CLOCK_MONOTONIC
	headBegun  = 40 // u64: records begun

	noName  = 0xffffffff
	longest = 1024 // bytes of a name
)

// Bounds of a ring's size, so that a target cannot make the daemon map what it likes.
const (
	maxSlots = 1 << 16
	maxNames = 16 << 20 // bytes
)
