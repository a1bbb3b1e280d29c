package callers

import (
	"fmt"

	frames "github.com/inferscope/inferscope/internal/capture/profile/cfi"
)

// Limits of an expression: those of linkers' PLTs and of glibc's signal frames have
// at most a dozen steps on three values.
const (
	maxSteps = 256
	maxStack = 32
)

// machine computes one expression.
type machine struct {
	registers *Registers
	memory    memory
	stack     []uint64
	bad       bool
}

// evaluate computes an expression; initial is on the stack at the start, as of
// every rule but the CFA's own.
func evaluate(expr []byte, registers *Registers, memory memory, initial ...uint64) (uint64, error) {
	m := &machine{registers: registers, memory: memory, stack: initial}
	c := &frames.Cursor{B: expr}
	for steps := 0; c.More(); steps++ {
		if steps == maxSteps {
			return 0, fmt.Errorf("%w: an expression of more than %d steps", errMalformed, maxSteps)
		}
		op := c.U8()
		if err := m.step(op, c); err != nil {
			return 0, err
		}
		if m.bad || c.Bad || len(m.stack) > maxStack {
			return 0, fmt.Errorf("%w: operation %#x of an expression", errMalformed, op)
		}
	}
	if len(m.stack) == 0 {
		return 0, fmt.Errorf("%w: an expression without a value", errMalformed)
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

func (m *machine) step(op uint8, c *frames.Cursor) error {
	switch {
	case op >= frames.ExLit0 && op < frames.ExLit0+32:
		m.push(uint64(op - frames.ExLit0))
	case op >= frames.ExBreg0 && op <= frames.ExBregLast:
		m.push(m.register(uint64(op-frames.ExBreg0)) + uint64(c.SLEB()))
	case op >= frames.ExConst1U && op <= frames.ExConst8S:
		m.constant(op, c)
	case op == frames.ExDeref:
		v, err := m.memory.Word(m.pop())
		if err != nil {
			return err
		}
		m.push(v)
	case op >= frames.ExDup && op <= frames.ExSwap:
		m.shuffle(op)
	case op == frames.ExNeg:
		m.push(-m.pop())
	case op == frames.ExNot:
		m.push(^m.pop())
	case op == frames.ExPlusU:
		m.push(m.pop() + c.ULEB())
	case op == frames.ExConstU:
		m.push(c.ULEB())
	case op == frames.ExConstS:
		m.push(uint64(c.SLEB()))
	case op == frames.ExBregX:
		n := c.ULEB()
		m.push(m.register(n) + uint64(c.SLEB()))
	case op == frames.ExNop:
	default:
		m.binary(op)
	}
	return nil
}

// constant reads a number of 1, 2, 4 or 8 bytes, unsigned and signed in turns.
func (m *machine) constant(op uint8, c *frames.Cursor) {
	n := 1 << ((op - frames.ExConst1U) / 2)
	if (op-frames.ExConst1U)%2 == 0 {
		m.push(c.Number(n))
		return
	}
	m.push(c.Signed(n))
}

func (m *machine) shuffle(op uint8) {
	top := m.pop()
	switch op {
	case frames.ExDup:
		m.push(top)
		m.push(top)
	case frames.ExDrop:
	case frames.ExOver:
		next := m.pop()
		m.push(next)
		m.push(top)
		m.push(next)
	case frames.ExSwap:
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
	case frames.ExAnd:
		m.push(a & b)
	case frames.ExOr:
		m.push(a | b)
	case frames.ExXor:
		m.push(a ^ b)
	case frames.ExPlus:
		m.push(a + b)
	case frames.ExMinus:
		m.push(a - b)
	case frames.ExMul:
		m.push(a * b)
	case frames.ExShl:
		m.push(a << min(b, 64))
	case frames.ExShr:
		m.push(a >> min(b, 64))
	case frames.ExShra:
		m.push(uint64(int64(a) >> min(b, 63)))
	default:
		m.compare(op, int64(a), int64(b))
	}
}

// compare does eq, ge, gt, le, lt and ne, which follow each other.
func (m *machine) compare(op uint8, a, b int64) {
	if op < frames.ExEq || op > frames.ExNe {
		m.bad = true
		return
	}
	yes := [...]bool{a == b, a >= b, a > b, a <= b, a < b, a != b}[op-frames.ExEq]
	if yes {
		m.push(1)
		return
	}
	m.push(0)
}
