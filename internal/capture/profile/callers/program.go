package callers

import (
	"fmt"

	frames "github.com/inferscope/inferscope/internal/capture/profile/cfi"
)

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

// rule describes how a register's value in the caller is found.
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
	if err := r.run(fn.Program, false); err != nil {
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
	c := &frames.Cursor{B: program}
	for c.More() {
		in, err := r.fn.Next(c)
		if err == nil {
			err = r.execute(&in)
		}
		if err != nil {
			return err
		}
		if moving && r.location > r.limit {
			return nil
		}
	}
	if c.Bad {
		return fmt.Errorf("%w: a program is cut off", errMalformed)
	}
	return nil
}

func (r *runner) execute(in *frames.Instruction) error {
	switch in.Kind {
	case frames.Advance:
		r.location += in.Value
	case frames.SetLocation:
		r.location = in.Value
	case frames.Remember, frames.RestoreState:
		return r.state(in.Kind)
	case frames.NegateRASign:
		r.row.signed = !r.row.signed
	case frames.CFA:
		r.row.cfa = rule{kind: inRegister, register: in.Register, offset: in.Offset}
	case frames.CFARegister:
		r.row.cfa.register = in.Register
	case frames.CFAOffset:
		r.row.cfa.offset = in.Offset
	case frames.CFAExpression:
		r.row.cfa = rule{kind: isValue, expr: in.Expression}
	case frames.Restore:
		r.restore(in.Register)
	default:
		r.register(in)
	}
	return nil
}

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

func (r *runner) state(kind frames.Kind) error {
	if kind == frames.Remember {
		if len(r.states) == maxStates {
			return fmt.Errorf("%w: more than %d states", errMalformed, maxStates)
		}
		r.states = append(r.states, r.row)
		return nil
	}
	if len(r.states) == 0 {
		return fmt.Errorf("%w: no state to go back to", errMalformed)
	}
	r.row = r.states[len(r.states)-1]
	r.states = r.states[:len(r.states)-1]
	return nil
}

// register gives a register its rule.
func (r *runner) register(in *frames.Instruction) {
	kinds := [...]ruleKind{
		frames.Undefined: undefined, frames.SameValue: sameValue, frames.AtOffset: atOffset, frames.IsOffset: isOffset,
		frames.InRegister: inRegister, frames.AtAddress: atAddress, frames.IsExpression: isValue,
	}
	if in.Kind < frames.Undefined || int(in.Kind) >= len(kinds) {
		return
	}
	r.set(in.Register, rule{kind: kinds[in.Kind], register: in.Value, offset: in.Offset, expr: in.Expression})
}
