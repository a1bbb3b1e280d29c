package cfi

import "fmt"

// columns is how many registers are followed; vector registers have higher numbers.
const columns = 34

// maxStates bounds the states that a program remembers at a time.
const maxStates = 32

type ruleKind uint8

const (
	sameValue  ruleKind = iota // the callee kept it
	undefined                  // lost; of the return address: there is no caller
	atOffset                   // in memory at the CFA plus offset
	isOffset                   // the CFA plus offset
	inRegister                 // in another register
	atAddress                  // in memory where an expression says
	isValue                    // what an expression says
)

// rule says how a register's value in the caller is found.
type rule struct {
	kind     ruleKind
	register uint64
	offset   int64
	expr     []byte
}

// row is the state of a function at one address.
type row struct {
	cfa       rule // inRegister with an offset, or isValue
	registers [columns]rule
	signed    bool // arm64: the return address is signed
}

// runner runs the programs of one function up to an address.
type runner struct {
	fn       *function
	row      row
	initial  row // after the program of the CIE
	states   []row
	location uint64
	limit    uint64
}

// rowAt returns the state of fn at an address.
func (fn *function) rowAt(addr uint64) (*row, error) {
	r := &runner{fn: fn, location: fn.start, limit: addr}
	if err := r.run(fn.common.program, false); err != nil {
		return nil, err
	}
	r.initial = r.row
	if err := r.run(fn.program, true); err != nil {
		return nil, err
	}
	return &r.row, nil
}

// run executes instructions until they are past the address. Each takes a byte at
// least, so that it ends.
func (r *runner) run(program []byte, moving bool) error {
	c := &cursor{b: program, base: 0}
	for c.more() {
		op := c.u8()
		low := uint64(op & 0x3f)
		switch op & 0xc0 {
		case 0x40: // advance_loc
			r.advance(low)
		case 0x80: // offset
			r.set(low, rule{kind: atOffset, offset: int64(c.uleb()) * r.fn.dataAlign})
		case 0xc0: // restore
			r.restore(low)
		default:
			if err := r.extended(op, c); err != nil {
				return err
			}
		}
		if moving && r.location > r.limit {
			return nil
		}
	}
	if c.bad {
		return fmt.Errorf("%w: a program is cut off", ErrMalformed)
	}
	return nil
}

func (r *runner) advance(delta uint64) { r.location += delta * r.fn.codeAlign }

// set ignores registers that are not followed.
func (r *runner) set(register uint64, to rule) {
	if register < columns {
		r.row.registers[register] = to
	}
}

func (r *runner) restore(register uint64) {
	if register < columns {
		r.set(register, r.initial.registers[register])
	}
}

// The instructions: DWARF 5, table 7.29; LSB 5.0, 10.5.1.
const (
	opNop            = 0x00
	opSetLoc         = 0x01
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
	opNegateRASign   = 0x2d
	opGNUArgsSize    = 0x2e
	opGNUNegOffset   = 0x2f
)

func (r *runner) extended(op uint8, c *cursor) error {
	switch op {
	case opNop:
	case opSetLoc:
		r.location = c.pointer(r.fn.encoding)
	case opAdvance1, opAdvance2, opAdvance4:
		r.advance(c.number(1 << (op - opAdvance1)))
	case opRemember, opRestoreState:
		return r.state(op)
	case opNegateRASign:
		r.row.signed = !r.row.signed
	case opGNUArgsSize:
		c.uleb()
	case opDefCFA, opDefCFARegister, opDefCFAOffset, opDefCFAExpr, opDefCFASF, opDefCFAOffsetSF:
		r.cfa(op, c)
	default:
		return r.register(op, c)
	}
	return nil
}

func (r *runner) state(op uint8) error {
	if op == opRemember {
		if len(r.states) == maxStates {
			return fmt.Errorf("%w: more than %d states", ErrMalformed, maxStates)
		}
		r.states = append(r.states, r.row)
		return nil
	}
	if len(r.states) == 0 {
		return fmt.Errorf("%w: no state to go back to", ErrMalformed)
	}
	r.row = r.states[len(r.states)-1]
	r.states = r.states[:len(r.states)-1]
	return nil
}

func (r *runner) cfa(op uint8, c *cursor) {
	cfa := r.row.cfa
	switch op {
	case opDefCFA:
		cfa = rule{kind: inRegister, register: c.uleb(), offset: int64(c.uleb())}
	case opDefCFASF:
		cfa = rule{kind: inRegister, register: c.uleb(), offset: c.sleb() * r.fn.dataAlign}
	case opDefCFARegister:
		cfa.register = c.uleb()
	case opDefCFAOffset:
		cfa.offset = int64(c.uleb())
	case opDefCFAOffsetSF:
		cfa.offset = c.sleb() * r.fn.dataAlign
	case opDefCFAExpr:
		cfa = rule{kind: isValue, expr: c.take(c.uleb())}
	}
	r.row.cfa = cfa
}

func (r *runner) register(op uint8, c *cursor) error {
	register := c.uleb()
	align := r.fn.dataAlign
	switch op {
	case opOffsetExtended:
		r.set(register, rule{kind: atOffset, offset: int64(c.uleb()) * align})
	case opOffsetExtSF:
		r.set(register, rule{kind: atOffset, offset: c.sleb() * align})
	case opGNUNegOffset:
		r.set(register, rule{kind: atOffset, offset: -int64(c.uleb()) * align})
	case opValOffset:
		r.set(register, rule{kind: isOffset, offset: int64(c.uleb()) * align})
	case opValOffsetSF:
		r.set(register, rule{kind: isOffset, offset: c.sleb() * align})
	case opRestoreExt:
		r.restore(register)
	case opUndefined:
		r.set(register, rule{kind: undefined})
	case opSameValue:
		r.set(register, rule{})
	case opRegister:
		r.set(register, rule{kind: inRegister, register: c.uleb()})
	case opExpression:
		r.set(register, rule{kind: atAddress, expr: c.take(c.uleb())})
	case opValExpression:
		r.set(register, rule{kind: isValue, expr: c.take(c.uleb())})
	default:
		return fmt.Errorf("%w: instruction %#x", ErrMalformed, op)
	}
	return nil
}
