// Package uprobe decides where in a function a probe is cheap, and puts probes there.
package uprobe

import (
	"debug/elf"
	"fmt"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// Window is how many bytes of a function Choose wants to see. Code that is shorter
// is taken for the whole function.
const Window = 256

// The walk from the entry ends after this many bytes or instructions: nothing
// cheap has been found further on in any libcuda or libcudart (drivers 470 to 580).
const (
	walkBytes = 64
	walkInsns = 12
)

// Choose returns the point of a function at which a uprobe costs least: the first
// instruction on the straight line from the entry that the kernel emulates rather
// than single-steps (9 to 33 times cheaper), provided that nothing before it writes
// an argument register, the stack pointer or memory, or changes the flow; so at the
// point every argument can be read and the return probed as at the entry. Where
// there is no such instruction, the point is the entry.
//
// code holds the function's bytes from its entry, all of them or the first Window;
// addr is its virtual address; machine is that of the ELF file. A point behind the
// entry is chosen only if no branch in code leads to it except through the entry,
// because a point in a loop would count iterations, not calls.
//
// What is emulated: arch/x86/kernel/uprobes.c (branch_setup_xol_ops,
// push_setup_xol_ops) and arch/arm64/kernel/probes/decode-insn.c
// (arm_probe_decode_insn), of kernels 5.15 to 6.18.
func Choose(code []byte, addr uint64, machine elf.Machine) Point {
	var isa decoder
	switch machine {
	case elf.EM_X86_64:
		isa = amd64{}
	case elf.EM_AARCH64:
		isa = arm64{}
	default:
		return Point{}
	}
	if len(code) > Window {
		code = code[:Window]
	}
	return walk(isa, code, addr)
}

// insn is what the walk wants to know of an instruction.
type insn struct {
	size     int
	emulated bool  // the kernel emulates it, on every kernel from 5.15 on
	risky    bool  // emulated, but not to be chosen behind the entry, and at the entry only for want of better
	harmless bool  // leaves arguments, stack pointer, memory and flow alone
	push     bool  // cannot stand in a loop, or the stack would not balance
	branches bool  // a direct branch, to target
	target   int64 // from the start of the instruction
}

// decoder knows the first instruction of code. ok is false where it does not.
type decoder interface {
	decode(code []byte) (i insn, ok bool)
	text(code []byte, addr uint64) string // GNU syntax; code has been decoded
}

func walk(isa decoder, code []byte, addr uint64) Point {
	pos, cheap := cheapPoint(isa, code)
	p := Point{Offset: uint64(pos), Cheap: cheap}
	if _, ok := isa.decode(code[pos:]); ok {
		p.Insn = isa.text(code[pos:], addr+p.Offset)
	}
	return p
}

// cheapPoint returns where the walk ends well, or 0 and whether the entry itself is cheap.
func cheapPoint(isa decoder, code []byte) (pos int, cheap bool) {
	for n := 0; pos < min(len(code), walkBytes) && n < walkInsns; n++ {
		i, ok := isa.decode(code[pos:])
		if !ok {
			break
		}
		if pos == 0 {
			cheap = i.emulated
		}
		if i.emulated && !i.risky {
			if pos == 0 || reachedOnce(isa, code, pos, i.push) {
				return pos, true
			}
			break
		}
		if !i.harmless {
			break
		}
		pos += i.size
	}
	return 0, cheap
}

// reachedOnce reports whether no branch in code leads behind the entry and up to
// point. If code does not show the whole function, or cannot be decoded, that is
// not known: then only a push may be the point.
func reachedOnce(isa decoder, code []byte, point int, push bool) bool {
	pos := 0
	for pos < len(code) {
		i, ok := isa.decode(code[pos:])
		if !ok {
			break
		}
		to := int64(pos) + i.target
		if i.branches && to > 0 && to <= int64(point) {
			return false
		}
		pos += i.size
	}
	return push || pos == len(code) && len(code) < Window
}

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

// perWindow is how many of the windows in which the rate of calls is looked at are in a second (SKIP_WINDOW).
const perWindow = 10

// SetFrequent sets how many calls a second of one frequent function a thread may make that
// each have an event.
func (a *Attacher) SetFrequent(calls uint64) error {
	if err := a.coll.Variables[bpf.CallsVarCallsInWindow].Set(max(1, calls/perWindow)); err != nil {
		return fmt.Errorf("tell the programs for CUDA calls which are frequent: %w", err)
	}
	return nil
}

// Skipped returns an event for the calls that have been counted and are in none yet, with event.Open.
func (a *Attacher) Skipped(to uint64) []event.Event {
	var out []event.Event
	var key uint64
	var s bpf.CallsSkips
	for all := a.coll.Maps[bpf.CallsMapSkippedCalls].Iterate(); all.Next(&key, &s); {
		if s.Outer|s.Inner == 0 || s.From >= to {
			continue
		}
		out = append(out, event.Event{
			TS: s.From, Dur: to - s.From, PID: s.Pid, TID: uint32(key), Func: uint16(key >> 32), Kind: event.Skipped,
			Flags: event.Timed | event.Open, Ret: int32(s.Every), Args: [4]uint64{uint64(s.Outer), uint64(s.Inner)},
		})
	}
	return out
}
