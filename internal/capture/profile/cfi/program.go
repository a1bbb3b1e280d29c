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

	OpNop            = 0x00
	OpSetLoc         = 0x01
	OpAdvance1       = 0x02
	OpAdvance2       = 0x03
	OpAdvance4       = 0x04
	OpOffsetExtended = 0x05
	OpRestoreExt     = 0x06
	OpUndefined      = 0x07
	OpSameValue      = 0x08
	OpRegister       = 0x09
	OpRemember       = 0x0a
	OpRestoreState   = 0x0b
	OpDefCFA         = 0x0c
	OpDefCFARegister = 0x0d
	OpDefCFAOffset   = 0x0e
	OpDefCFAExpr     = 0x0f
	OpExpression     = 0x10
	OpOffsetExtSF    = 0x11
	OpDefCFASF       = 0x12
	OpDefCFAOffsetSF = 0x13
	OpValOffset      = 0x14
	OpValOffsetSF    = 0x15
	OpValExpression  = 0x16
	OpNegateRASign   = 0x2d
	OpGNUArgsSize    = 0x2e
	OpGNUNegOffset   = 0x2f
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
	case OpNop:
		return Instruction{}, nil
	case OpGNUArgsSize:
		r.ULEB()
		return Instruction{}, nil
	case OpSetLoc:
		return Instruction{Kind: SetLocation, Value: r.Pointer(c.Encoding)}, nil
	case OpAdvance1, OpAdvance2, OpAdvance4:
		return Instruction{Kind: Advance, Value: r.Number(1<<(op-OpAdvance1)) * c.CodeAlign}, nil
	case OpRemember:
		return Instruction{Kind: Remember}, nil
	case OpRestoreState:
		return Instruction{Kind: RestoreState}, nil
	case OpNegateRASign:
		return Instruction{Kind: NegateRASign}, nil
	case OpDefCFAOffset:
		return Instruction{Kind: CFAOffset, Offset: int64(r.ULEB())}, nil
	case OpDefCFAOffsetSF:
		return Instruction{Kind: CFAOffset, Offset: r.SLEB() * c.DataAlign}, nil
	case OpDefCFAExpr:
		return Instruction{Kind: CFAExpression, Expression: r.Take(r.ULEB())}, nil
	}
	return c.ofRegister(op, r)
}

// ofRegister reads an instruction whose first operand is a register.
func (c *Common) ofRegister(op uint8, r *Cursor) (Instruction, error) {
	in := Instruction{Register: r.ULEB()}
	switch op {
	case OpDefCFA:
		in.Kind, in.Offset = CFA, int64(r.ULEB())
	case OpDefCFASF:
		in.Kind, in.Offset = CFA, r.SLEB()*c.DataAlign
	case OpDefCFARegister:
		in.Kind = CFARegister
	case OpOffsetExtended:
		in.Kind, in.Offset = AtOffset, int64(r.ULEB())*c.DataAlign
	case OpOffsetExtSF:
		in.Kind, in.Offset = AtOffset, r.SLEB()*c.DataAlign
	case OpGNUNegOffset:
		in.Kind, in.Offset = AtOffset, -int64(r.ULEB())*c.DataAlign
	case OpValOffset:
		in.Kind, in.Offset = IsOffset, int64(r.ULEB())*c.DataAlign
	case OpValOffsetSF:
		in.Kind, in.Offset = IsOffset, r.SLEB()*c.DataAlign
	case OpRestoreExt:
		in.Kind = Restore
	case OpUndefined:
		in.Kind = Undefined
	case OpSameValue:
		in.Kind = SameValue
	case OpRegister:
		in.Kind, in.Value = InRegister, r.ULEB()
	case OpExpression:
		in.Kind, in.Expression = AtAddress, r.Take(r.ULEB())
	case OpValExpression:
		in.Kind, in.Expression = IsExpression, r.Take(r.ULEB())
	default:
		return Instruction{}, fmt.Errorf("%w: instruction %#x", ErrMalformed, op)
	}
	return in, nil
}
