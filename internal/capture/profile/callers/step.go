package callers

import (
	"debug/elf"
	"errors"
	"fmt"
)

// ErrEnd means that a function has no caller: it is the thread's first.
var ErrEnd = errors.New("the thread's first function")

// Registers are a thread's, by DWARF's numbers (System V ABI AMD64, figure 3.36:
// rbp is 6, rsp 7; DWARF for the Arm 64-bit Architecture: x0 to x30 are 0 to 30, sp 31).
type Registers struct {
	PC uint64
	R  [columns]uint64
}

// memory is the memory of a process.
type memory interface {
	// Word reads the 8 bytes at an address.
	Word(addr uint64) (uint64, error)
}

// arch is what differs between architectures.
type arch struct {
	sp       int
	userBits uint // of addresses; what is above is arm64's signature
}

func archOf(m elf.Machine) (arch, bool) {
	switch m {
	case elf.EM_X86_64:
		return arch{sp: 7, userBits: 64}, true
	case elf.EM_AARCH64:
		return arch{sp: 31, userBits: 48}, true
	}
	return arch{}, false
}

// Caller returns the registers as they are in the function's caller. addr is the
// address of the code in the file's numbering: for a function that has called
// another, one less than where that returns to, so that a call at the very end of a
// function belongs to it. signal says that the caller was interrupted: the address
// that it goes on at is its own. Errors: ErrEnd, ErrNoEntry, errMalformed, and those of memory.
func (f *File) Caller(addr uint64, r *Registers, memory memory) (caller Registers, signal bool, err error) {
	if f.count == 0 {
		return Registers{}, false, ErrNoEntry
	}
	at, err := f.find(addr)
	if err != nil {
		return Registers{}, false, err
	}
	fn, err := f.function(at)
	if err != nil {
		return Registers{}, false, err
	}
	if addr < fn.start || addr >= fn.end {
		return Registers{}, false, ErrNoEntry
	}
	row, err := fn.rowAt(addr)
	if err != nil {
		return Registers{}, false, err
	}
	caller, err = row.apply(fn.Return, f.arch, r, memory)
	return caller, fn.Signal, err
}

// apply computes the caller's registers.
func (w *row) apply(ra uint64, a arch, r *Registers, memory memory) (Registers, error) {
	cfa, err := w.address(r, memory)
	if err != nil {
		return Registers{}, err
	}
	if w.registers[ra].kind == undefined {
		return Registers{}, ErrEnd
	}
	out := *r
	out.R[a.sp] = cfa
	for i := range w.registers {
		if w.registers[i].kind == sameValue {
			continue
		}
		if out.R[i], err = w.registers[i].value(cfa, r, memory); err != nil {
			return Registers{}, err
		}
	}
	out.PC = out.R[ra]
	if w.signed || a.userBits < 64 {
		out.PC &= 1<<a.userBits - 1
	}
	if out.PC == 0 {
		return Registers{}, ErrEnd
	}
	return out, nil
}

// address computes the CFA: the value of the stack pointer before the call.
func (w *row) address(r *Registers, memory memory) (uint64, error) {
	switch {
	case w.cfa.kind == isValue:
		return evaluate(w.cfa.expr, r, memory)
	case w.cfa.kind == inRegister && w.cfa.register < columns:
		return r.R[w.cfa.register] + uint64(w.cfa.offset), nil
	}
	return 0, fmt.Errorf("%w: no CFA", errMalformed)
}

func (u *rule) value(cfa uint64, r *Registers, memory memory) (uint64, error) {
	switch u.kind {
	case atOffset:
		return memory.Word(cfa + uint64(u.offset))
	case isOffset:
		return cfa + uint64(u.offset), nil
	case inRegister:
		if u.register >= columns {
			return 0, fmt.Errorf("%w: register %d", errMalformed, u.register)
		}
		return r.R[u.register], nil
	case atAddress:
		addr, err := evaluate(u.expr, r, memory, cfa)
		if err != nil {
			return 0, err
		}
		return memory.Word(addr)
	case isValue:
		return evaluate(u.expr, r, memory, cfa)
	}
	return 0, nil // undefined: of no use to anybody
}
