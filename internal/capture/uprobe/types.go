// Package uprobe decides where in a function a probe is cheap, and puts probes there.
package uprobe

// Mode is how probes are attached, from the newest kernels to the oldest.
type Mode string

// The modes. They are told apart by attaching, never by version.
const (
	Session Mode = "session" // uprobe.session: kernel 6.13 on
	Multi   Mode = "multi"   // uprobe_multi, entry and return apart: kernel 6.6 on
	Perf    Mode = "perf"    // one perf event per probe: kernel 5.15 on
)

// Point is the place in a function at which a probe costs least without missing a
// call or a register.
type Point struct {
	Offset uint64 // bytes from the function's entry
	Cheap  bool   // the kernel emulates the instruction instead of single-stepping it
	Insn   string // the instruction there, in Go's assembler-neutral GNU syntax, for status and tests
}

// Site is one address of a file to probe.
type Site struct {
	Offset uint64 // in the file, bytes: the function's file offset plus Point.Offset
	Cookie uint64 // bpf/event.h, COOKIE_*
	Timed  bool   // probe the return too
}
