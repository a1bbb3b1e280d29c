package tables

import (
	"cmp"
	"fmt"

	"go.opentelemetry.io/ebpf-profiler/nativeunwind/stackdeltatypes"
	"go.opentelemetry.io/ebpf-profiler/support"
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

// rule says how a value is found. The members that kind does not use are 0.
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

// The instructions: DWARF 5, table 7.29; LSB 5.0, 10.5.1.
const (
	opNop            = 0x00
	opAdvance1       = 0x02
	opAdvance2       = 0x03
	opAdvance4       = 0x04
	opOffsetExtended = 0x05
	opRestoreExt     = 0x06
	opUndefined      = 0x07
	opSameValue      = 0x08
	opRegister       = 0x09
	opRemember       = 0x0a
	opRestoreState   = 0x0b
	opDefCFA         = 0x0c
	opDefCFARegister = 0x0d
	opDefCFAOffset   = 0x0e
	opDefCFAExpr     = 0x0f
	opExpression     = 0x10
	opOffsetExtSF    = 0x11
	opDefCFASF       = 0x12
	opDefCFAOffsetSF = 0x13
	opValOffset      = 0x14
	opValOffsetSF    = 0x15
	opValExpression  = 0x16
	opGNUArgsSize    = 0x2e
)

// begin makes it ready for a function's program.
func (m *machine) begin(c *common) { m.common, m.row, m.location, m.depth = c, c.initial, 0, 0 }

// step runs a program up to the next address, or its end.
func (m *machine) step(r *cursor) error {
	for r.more() {
		op := r.u8()
		low := uint64(op & 0x3f)
		switch op & 0xc0 {
		case 0x40: // advance_loc
			m.location += low * m.common.codeAlign
			return nil
		case 0x80: // offset
			m.set(low, inFrame, int64(r.uleb())*m.common.dataAlign)
			continue
		case 0xc0: // restore
			m.restore(low)
			continue
		}
		switch op {
		case opAdvance1, opAdvance2, opAdvance4:
			m.location += r.number(1<<(op-opAdvance1)) * m.common.codeAlign
			return nil
		case opDefCFAOffset:
			m.row.cfa.offset = int64(r.uleb())
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

func (m *machine) rare(op uint8, r *cursor) error {
	switch op {
	case opNop:
	case opRemember, opRestoreState:
		return m.state(op)
	case opGNUArgsSize:
		r.uleb()
	case opDefCFA, opDefCFARegister, opDefCFASF, opDefCFAOffsetSF, opDefCFAExpr:
		m.cfa(op, r)
	default:
		return m.register(op, r)
	}
	return nil
}

func (m *machine) state(op uint8) error {
	switch {
	case op == opRemember && m.depth < maxStates:
		m.states[m.depth] = m.row
		m.depth++
	case op == opRestoreState && m.depth > 0:
		m.depth--
		m.row = m.states[m.depth]
	default:
		return fmt.Errorf("%w: states are remembered too deep, or not at all", errOther)
	}
	return nil
}

func (m *machine) cfa(op uint8, r *cursor) {
	cfa := &m.row.cfa
	switch op {
	case opDefCFA:
		*cfa = rule{kind: r.uleb(), offset: int64(r.uleb())}
	case opDefCFARegister:
		*cfa = rule{kind: r.uleb(), offset: cfa.offset}
	case opDefCFASF:
		*cfa = rule{kind: r.uleb(), offset: r.sleb() * m.common.dataAlign}
	case opDefCFAOffsetSF:
		cfa.offset = r.sleb() * m.common.dataAlign
	case opDefCFAExpr:
		expression(r, cfa)
	}
}

func (m *machine) register(op uint8, r *cursor) error {
	register := r.uleb()
	align := m.common.dataAlign
	switch op {
	case opOffsetExtended:
		m.set(register, inFrame, int64(r.uleb())*align)
	case opOffsetExtSF:
		m.set(register, inFrame, r.sleb()*align)
	case opValOffset:
		m.set(register, frameIs, int64(r.uleb())*align)
	case opValOffsetSF:
		m.set(register, frameIs, r.sleb()*align)
	case opRestoreExt:
		m.restore(register)
	case opUndefined:
		m.set(register, undefined, 0)
	case opSameValue:
		m.set(register, same, 0)
	case opRegister:
		m.set(register, r.uleb(), 0)
	case opExpression:
		var other rule
		expression(r, cmp.Or(m.row.followed(register), &other))
	case opValExpression:
		m.set(register, undefined, 0)
		r.skip(r.uleb())
	default:
		return fmt.Errorf("%w: instruction %#x", errOther, op)
	}
	return nil
}

// info makes of a row what the BPF programs follow (getUnwindInfoX86 of the library).
func (w *row) info() support.UnwindInfo {
	switch {
	case w.cfa.kind == undefined || w.ra.kind == undefined:
		return stackdeltatypes.UnwindInfoStop
	case w.ra.kind == inFrame && w.cfa.kind == rsp && w.cfa.offset+w.ra.offset < 0:
		return stackdeltatypes.UnwindInfoStop // the return address is taken off the stack already: musl's first function
	}
	var out support.UnwindInfo
	ra := number(w.ra.kind)
	switch {
	case ra != support.UnwindRegInvalid: // vfork keeps it in a register
		out.Flags |= support.UnwindFlagRegisterRA
		out.AuxBaseReg = ra
		if ra != support.UnwindRegFp && ra != support.UnwindRegSp {
			return stackdeltatypes.UnwindInfoInvalid // good for leaves only, which the library allows in libcrypto and libc
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

// framePointer says where the caller's frame pointer is.
func (w *row) framePointer(out *support.UnwindInfo) {
	switch {
	case w.fp.kind == inFrame && (w.cfa.kind != rsp || w.fp.offset < 0 && w.fp.offset >= -w.cfa.offset):
		out.AuxBaseReg, out.AuxParam = support.UnwindRegCfa, int32(w.fp.offset)
	case w.fp.kind == plus && w.fp.base == rbp:
		out.AuxBaseReg, out.AuxParam = support.UnwindRegFp, int32(int16(w.fp.before))
	}
}

// stackPointer says where the CFA is, or that nothing of it is of use.
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
