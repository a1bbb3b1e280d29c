package cfi

import "fmt"

// The instructions of programs: DWARF 5, table 7.29; LSB 5.0, 10.5.1. Three have an operand in
// their low bits.
const (
	OpAdvance = 0x40
	OpOffset  = 0x80
	OpRestore = 0xc0

	OpHigh = 0xc0 // the bits that say so
	OpLow  = 0x3f // and those of the operand

	opNop            = 0x00
	opSetLoc         = 0x01
	OpAdvance1       = 0x02
	OpAdvance2       = 0x03
	OpAdvance4       = 0x04
	opOffsetExtended = 0x05
	opRestoreExt     = 0x06
	opUndefined      = 0x07
	opSameValue      = 0x08
	opRegister       = 0x09
	opRemember       = 0x0a
	opRestoreState   = 0x0b
	opDefCFA         = 0x0c
	opDefCFARegister = 0x0d
	OpDefCFAOffset   = 0x0e
	opDefCFAExpr     = 0x0f
	opExpression     = 0x10
	opOffsetExtSF    = 0x11
	opDefCFASF       = 0x12
	opDefCFAOffsetSF = 0x13
	opValOffset      = 0x14
	opValOffsetSF    = 0x15
	opValExpression  = 0x16
	opNegateRASign   = 0x2d
	opGNUArgsSize    = 0x2e
	opGNUNegOffset   = 0x2f
)

// Kind is what an instruction does, however it is written.
type Kind uint8

// The kinds, and which members of an Instruction they have.
const (
	Nothing       Kind = iota
	Advance            // the location by Value bytes
	SetLocation        // to Value
	Remember           // the state
	RestoreState       // the last one that was remembered
	NegateRASign       // arm64: the return address is signed, or not any more
	CFA                // is Register plus Offset
	CFARegister        // Register, with the offset as it was
	CFAOffset          // Offset, with the register as it was
	CFAExpression      // what Expression says
	Restore            // Register's rule, as after the program of the CIE
	Undefined          // Register is lost
	SameValue          // Register is kept
	AtOffset           // Register is in memory at the CFA plus Offset
	IsOffset           // Register is the CFA plus Offset
	InRegister         // Register is in register Value
	AtAddress          // Register is in memory where Expression says
	IsExpression       // Register is what Expression says
)

// Instruction is one instruction of a program. The members that Kind does not use are 0.
type Instruction struct {
	Kind       Kind
	Register   uint64
	Value      uint64
	Offset     int64  // bytes
	Expression []byte // aliases the program
}

// Next reads an instruction, whose operands are scaled as c says. What is cut off makes r bad.
func (c *Common) Next(r *Cursor) (Instruction, error) {
	op := r.U8()
	low := uint64(op & OpLow)
	switch op & OpHigh {
	case OpAdvance:
		return Instruction{Kind: Advance, Value: low * c.CodeAlign}, nil
	case OpOffset:
		return Instruction{Kind: AtOffset, Register: low, Offset: int64(r.ULEB()) * c.DataAlign}, nil
	case OpRestore:
		return Instruction{Kind: Restore, Register: low}, nil
	}
	return c.Operands(op, r)
}

// Operands reads the rest of an instruction that has no operand in its low bits.
func (c *Common) Operands(op uint8, r *Cursor) (Instruction, error) {
	switch op {
	case opNop:
		return Instruction{}, nil
	case opGNUArgsSize:
		r.ULEB()
		return Instruction{}, nil
	case opSetLoc:
		return Instruction{Kind: SetLocation, Value: r.Pointer(c.Encoding)}, nil
	case OpAdvance1, OpAdvance2, OpAdvance4:
		return Instruction{Kind: Advance, Value: r.Number(1<<(op-OpAdvance1)) * c.CodeAlign}, nil
	case opRemember:
		return Instruction{Kind: Remember}, nil
	case opRestoreState:
		return Instruction{Kind: RestoreState}, nil
	case opNegateRASign:
		return Instruction{Kind: NegateRASign}, nil
	case OpDefCFAOffset:
		return Instruction{Kind: CFAOffset, Offset: int64(r.ULEB())}, nil
	case opDefCFAOffsetSF:
		return Instruction{Kind: CFAOffset, Offset: r.SLEB() * c.DataAlign}, nil
	case opDefCFAExpr:
		return Instruction{Kind: CFAExpression, Expression: r.Take(r.ULEB())}, nil
	}
	return c.ofRegister(op, r)
}

// ofRegister reads an instruction whose first operand is a register.
func (c *Common) ofRegister(op uint8, r *Cursor) (Instruction, error) {
	in := Instruction{Register: r.ULEB()}
	switch op {
	case opDefCFA:
		in.Kind, in.Offset = CFA, int64(r.ULEB())
	case opDefCFASF:
		in.Kind, in.Offset = CFA, r.SLEB()*c.DataAlign
	case opDefCFARegister:
		in.Kind = CFARegister
	case opOffsetExtended:
		in.Kind, in.Offset = AtOffset, int64(r.ULEB())*c.DataAlign
	case opOffsetExtSF:
		in.Kind, in.Offset = AtOffset, r.SLEB()*c.DataAlign
	case opGNUNegOffset:
		in.Kind, in.Offset = AtOffset, -int64(r.ULEB())*c.DataAlign
	case opValOffset:
		in.Kind, in.Offset = IsOffset, int64(r.ULEB())*c.DataAlign
	case opValOffsetSF:
		in.Kind, in.Offset = IsOffset, r.SLEB()*c.DataAlign
	case opRestoreExt:
		in.Kind = Restore
	case opUndefined:
		in.Kind = Undefined
	case opSameValue:
		in.Kind = SameValue
	case opRegister:
		in.Kind, in.Value = InRegister, r.ULEB()
	case opExpression:
		in.Kind, in.Expression = AtAddress, r.Take(r.ULEB())
	case opValExpression:
		in.Kind, in.Expression = IsExpression, r.Take(r.ULEB())
	default:
		return Instruction{}, fmt.Errorf("%w: instruction %#x", ErrMalformed, op)
	}
	return in, nil
}
