package cfi

import "fmt"

// Limits of an expression: those of linkers' PLTs and of glibc's signal frames have
// at most a dozen steps on three values.
const (
	maxSteps = 256
	maxStack = 32
)

// The operations that occur in unwind tables: DWARF 5, table 7.9. There are no jumps
// among them: none of the compilers writes them there.
const (
	exDeref    = 0x06
	exConst1u  = 0x08
	exConst8s  = 0x0f
	exConstu   = 0x10
	exConsts   = 0x11
	exDup      = 0x12
	exDrop     = 0x13
	exOver     = 0x14
	exSwap     = 0x16
	exAnd      = 0x1a
	exMinus    = 0x1c
	exMul      = 0x1e
	exNeg      = 0x1f
	exNot      = 0x20
	exOr       = 0x21
	exPlus     = 0x22
	exPlusU    = 0x23
	exShl      = 0x24
	exShr      = 0x25
	exShra     = 0x26
	exXor      = 0x27
	exEq       = 0x29
	exNe       = 0x2e
	exLit0     = 0x30
	exBreg0    = 0x70
	exBregLast = 0x8f
	exBregx    = 0x92
	exNop      = 0x96
)

// machine computes one expression.
type machine struct {
	registers *Registers
	memory    Memory
	stack     []uint64
	bad       bool
}

// evaluate computes an expression; initial is on the stack at the start, as of
// every rule but the CFA's own.
func evaluate(expr []byte, registers *Registers, memory Memory, initial ...uint64) (uint64, error) {
	m := &machine{registers: registers, memory: memory, stack: initial}
	c := &cursor{b: expr}
	for steps := 0; c.more(); steps++ {
		if steps == maxSteps {
			return 0, fmt.Errorf("%w: an expression of more than %d steps", ErrMalformed, maxSteps)
		}
		op := c.u8()
		if err := m.step(op, c); err != nil {
			return 0, err
		}
		if m.bad || c.bad || len(m.stack) > maxStack {
			return 0, fmt.Errorf("%w: operation %#x of an expression", ErrMalformed, op)
		}
	}
	if len(m.stack) == 0 {
		return 0, fmt.Errorf("%w: an expression without a value", ErrMalformed)
	}
	return m.pop(), nil
}

func (m *machine) push(v uint64) { m.stack = append(m.stack, v) }

func (m *machine) pop() uint64 {
	n := len(m.stack)
	if n == 0 {
		m.bad = true
		return 0
	}
	v := m.stack[n-1]
	m.stack = m.stack[:n-1]
	return v
}

func (m *machine) register(n uint64) uint64 {
	if n >= columns {
		m.bad = true
		return 0
	}
	return m.registers.R[n]
}

func (m *machine) step(op uint8, c *cursor) error {
	switch {
	case op >= exLit0 && op < exLit0+32:
		m.push(uint64(op - exLit0))
	case op >= exBreg0 && op <= exBregLast:
		m.push(m.register(uint64(op-exBreg0)) + uint64(c.sleb()))
	case op >= exConst1u && op <= exConst8s:
		m.constant(op, c)
	case op == exDeref:
		v, err := m.memory.Word(m.pop())
		if err != nil {
			return err
		}
		m.push(v)
	case op >= exDup && op <= exSwap:
		m.shuffle(op)
	case op == exNeg:
		m.push(-m.pop())
	case op == exNot:
		m.push(^m.pop())
	case op == exPlusU:
		m.push(m.pop() + c.uleb())
	case op == exConstu:
		m.push(c.uleb())
	case op == exConsts:
		m.push(uint64(c.sleb()))
	case op == exBregx:
		n := c.uleb()
		m.push(m.register(n) + uint64(c.sleb()))
	case op == exNop:
	default:
		m.binary(op)
	}
	return nil
}

// constant reads a number of 1, 2, 4 or 8 bytes, unsigned and signed in turns.
func (m *machine) constant(op uint8, c *cursor) {
	n := uint64(1) << ((op - exConst1u) / 2)
	if (op-exConst1u)%2 == 0 {
		m.push(c.number(n))
		return
	}
	m.push(c.signed(n))
}

func (m *machine) shuffle(op uint8) {
	top := m.pop()
	switch op {
	case exDup:
		m.push(top)
		m.push(top)
	case exDrop:
	case exOver:
		next := m.pop()
		m.push(next)
		m.push(top)
		m.push(next)
	case exSwap:
		next := m.pop()
		m.push(top)
		m.push(next)
	default:
		m.bad = true
	}
}

func (m *machine) binary(op uint8) {
	b, a := m.pop(), m.pop()
	switch op {
	case exAnd:
		m.push(a & b)
	case exOr:
		m.push(a | b)
	case exXor:
		m.push(a ^ b)
	case exPlus:
		m.push(a + b)
	case exMinus:
		m.push(a - b)
	case exMul:
		m.push(a * b)
	case exShl:
		m.push(a << min(b, 64))
	case exShr:
		m.push(a >> min(b, 64))
	case exShra:
		m.push(uint64(int64(a) >> min(b, 63)))
	default:
		m.compare(op, int64(a), int64(b))
	}
}

// compare does eq, ge, gt, le, lt and ne, which follow each other.
func (m *machine) compare(op uint8, a, b int64) {
	if op < exEq || op > exNe {
		m.bad = true
		return
	}
	yes := [...]bool{a == b, a >= b, a > b, a <= b, a < b, a != b}[op-exEq]
	if yes {
		m.push(1)
		return
	}
	m.push(0)
}
