package unwind

import (
	"fmt"

	"go.opentelemetry.io/ebpf-profiler/nativeunwind/stackdeltatypes"
	"go.opentelemetry.io/ebpf-profiler/support"

	"github.com/inferscope/inferscope/internal/capture/profile/cfi"
)

// Registers by DWARF's numbers (System V ABI AMD64, figure 3.36), and what a rule may
// say instead of one.
const (
	rax, rdi, rbp, rsp = 0, 5, 6, 7
	r8, r9, r11, r13   = 8, 9, 11, 13
	r15, rip           = 15, 16

	undefined = 1<<8 + iota // lost
	inFrame                 // in memory at the CFA plus the offset
	frameIs                 // the CFA plus the offset
	same                    // kept
	plt                     // the expression of a procedure linkage table
	plus                    // a register plus a number
	pointedAt               // in memory at a register plus a number, plus a number
	inArray                 // where only a running program could look
)

// maxStates bounds the states that a program remembers at a time. The library has 2, and
// gives a whole file up that goes deeper.
const maxStates = 8

// rule describes how a value is found. The members that kind does not use are 0.
type rule struct {
	kind   uint64 // a register, or one of the above
	offset int64
	base   uint8 // of plus and pointedAt: a register,
	before int64 // what is added to it,
	after  int64 // and to what is there
}

// row is the state of a function at one address: the CFA, the caller's frame pointer and
// the return address. Nothing else is followed.
type row struct{ cfa, fp, ra rule }

// unknownRow is the state before a program has said anything.
func unknownRow() row {
	return row{cfa: rule{kind: undefined}, fp: rule{kind: undefined}, ra: rule{kind: undefined}}
}

// machine runs the programs of functions.
type machine struct {
	common   *common
	row      row
	location uint64 // bytes from the function's start
	states   [maxStates]row
	depth    int
}

// begin makes it ready for a function's program.
func (m *machine) begin(c *common) { m.common, m.row, m.location, m.depth = c, c.initial, 0, 0 }

// step runs a program up to the next address, or its end. What nearly all instructions are is
// done here at once; the others are read by package cfi.
func (m *machine) step(r *cfi.Cursor) error {
	for r.More() {
		op := r.U8()
		low := uint64(op & cfi.OpLow)
		switch op & cfi.OpHigh {
		case cfi.OpAdvance:
			m.location += low * m.common.CodeAlign
			return nil
		case cfi.OpOffset:
			m.set(low, inFrame, int64(r.ULEB())*m.common.DataAlign)
			continue
		case cfi.OpRestore:
			m.restore(low)
			continue
		}
		switch op {
		case cfi.OpAdvance1, cfi.OpAdvance2, cfi.OpAdvance4:
			m.location += r.Number(1<<(op-cfi.OpAdvance1)) * m.common.CodeAlign
			return nil
		case cfi.OpDefCFAOffset:
			m.row.cfa.offset = int64(r.ULEB())
		default:
			if err := m.rare(op, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// followed returns where a register's rule is kept, nil where it is not.
func (w *row) followed(register uint64) *rule {
	switch register {
	case rbp:
		return &w.fp
	case rip:
		return &w.ra
	}
	return nil
}

func (m *machine) set(register, kind uint64, offset int64) {
	if to := m.row.followed(register); to != nil {
		*to = rule{kind: kind, offset: offset}
	}
}

func (m *machine) restore(register uint64) {
	if to := m.row.followed(register); to != nil {
		*to = *m.common.initial.followed(register)
	}
}

func (m *machine) rare(op uint8, r *cfi.Cursor) error {
	in, err := m.common.Operands(op, r)
	if err != nil {
		return fmt.Errorf("%w: %w", errOther, err)
	}
	switch in.Kind {
	case cfi.Nothing:
	case cfi.Remember, cfi.RestoreState:
		return m.state(in.Kind)
	case cfi.CFA:
		m.row.cfa = rule{kind: in.Register, offset: in.Offset}
	case cfi.CFARegister:
		m.row.cfa = rule{kind: in.Register, offset: m.row.cfa.offset}
	case cfi.CFAOffset:
		m.row.cfa.offset = in.Offset
	case cfi.CFAExpression:
		expression(in.Expression, &m.row.cfa)
	default:
		return m.register(&in)
	}
	return nil
}

func (m *machine) state(kind cfi.Kind) error {
	switch {
	case kind == cfi.Remember && m.depth < maxStates:
		m.states[m.depth] = m.row
		m.depth++
	case kind == cfi.RestoreState && m.depth > 0:
		m.depth--
		m.row = m.states[m.depth]
	default:
		return fmt.Errorf("%w: states are remembered too deep, or not at all", errOther)
	}
	return nil
}

// register gives a register its rule.
func (m *machine) register(in *cfi.Instruction) error {
	switch in.Kind {
	case cfi.AtOffset:
		m.set(in.Register, inFrame, in.Offset)
	case cfi.IsOffset:
		m.set(in.Register, frameIs, in.Offset)
	case cfi.Restore:
		m.restore(in.Register)
	case cfi.Undefined, cfi.IsExpression:
		m.set(in.Register, undefined, 0)
	case cfi.SameValue:
		m.set(in.Register, same, 0)
	case cfi.InRegister:
		m.set(in.Register, in.Value, 0)
	case cfi.AtAddress:
		if to := m.row.followed(in.Register); to != nil {
			expression(in.Expression, to)
		}
	default:
		return fmt.Errorf("%w: an instruction of kind %d", errOther, in.Kind)
	}
	return nil
}

// info makes of a row what the BPF programs follow (getUnwindInfoX86 of the library).
func (w *row) info() support.UnwindInfo {
	switch {
	case w.cfa.kind == undefined || w.ra.kind == undefined:
		return stackdeltatypes.UnwindInfoStop
	case w.ra.kind == inFrame && w.cfa.kind == rsp && w.cfa.offset+w.ra.offset < 0:
		// the return address is taken off the stack already: musl's first function
		return stackdeltatypes.UnwindInfoStop
	}
	var out support.UnwindInfo
	ra := number(w.ra.kind)
	switch {
	case ra != support.UnwindRegInvalid: // vfork keeps it in a register
		out.Flags |= support.UnwindFlagRegisterRA
		out.AuxBaseReg = ra
		if ra != support.UnwindRegFp && ra != support.UnwindRegSp {
			// good for leaves only, which the library allows in libcrypto and libc
			return stackdeltatypes.UnwindInfoInvalid
		}
	case w.ra.kind == inFrame && w.ra.offset == -8:
		w.framePointer(&out)
	default:
		return stackdeltatypes.UnwindInfoInvalid
	}
	return w.stackPointer(out)
}

// number is a register's in the BPF programs, those that they know.
func number(register uint64) uint8 {
	switch register {
	case rax:
		return support.UnwindRegX86RAX
	case rdi:
		return support.UnwindRegX86RDI
	case rbp:
		return support.UnwindRegFp
	case rsp:
		return support.UnwindRegSp
	case r8:
		return support.UnwindRegX86R8
	case r9:
		return support.UnwindRegX86R9
	case r11:
		return support.UnwindRegX86R11
	case r13:
		return support.UnwindRegX86R13
	case r15:
		return support.UnwindRegX86R15
	case rip:
		return support.UnwindRegPc
	}
	return support.UnwindRegInvalid
}

// framePointer reports where the caller's frame pointer is.
func (w *row) framePointer(out *support.UnwindInfo) {
	switch {
	case w.fp.kind == inFrame && (w.cfa.kind != rsp || w.fp.offset < 0 && w.fp.offset >= -w.cfa.offset):
		out.AuxBaseReg, out.AuxParam = support.UnwindRegCfa, int32(w.fp.offset)
	case w.fp.kind == plus && w.fp.base == rbp:
		out.AuxBaseReg, out.AuxParam = support.UnwindRegFp, int32(int16(w.fp.before))
	}
}

// stackPointer reports where the CFA is, or that nothing of it is of use.
func (w *row) stackPointer(out support.UnwindInfo) support.UnwindInfo {
	switch w.cfa.kind {
	case rbp, rsp:
		out.BaseReg, out.Param = number(w.cfa.kind), int32(w.cfa.offset)
		return out
	case plt:
		out.Flags |= support.UnwindFlagCommand
		out.Param = support.UnwindCommandPLT
		return out
	case pointedAt:
		param, ok := stackdeltatypes.PackDerefParam(int32(int16(w.cfa.before)), int32(int16(w.cfa.after)))
		if ok && (w.cfa.base == rbp || w.cfa.base == rsp) {
			out.Flags |= support.UnwindFlagDerefCfa
			out.BaseReg, out.Param = number(uint64(w.cfa.base)), param
			return out
		}
	}
	return stackdeltatypes.UnwindInfoInvalid
}
