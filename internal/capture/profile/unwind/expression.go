package unwind

import "github.com/inferscope/inferscope/internal/capture/profile/cfi"

// maxSteps bounds the operations that are looked at; the longest known shape has 9.
const maxSteps = 16

// The shapes of expressions that are known, one byte for each operation: what linkers write
// for procedure linkage tables; how OpenSSL's assembly finds its frame in an array of
// pointers, which is known for what it is, and nobody can follow it; a register plus a
// number; what is in memory there; and that plus a number.
const (
	pltShape     = "\x70\x70\x30\x1a\x30\x2a\x30\x24\x22" // breg breg lit and lit ge lit shl plus
	arrayShape   = "\x70\x70\x30\x1e\x22\x06\x23"         // breg breg lit mul plus deref plus_uconst
	plusShape    = "\x70"
	pointedShape = "\x70\x06"
	beyondShape  = "\x70\x06\x23"
)

// expression makes a rule of an expression, where it knows all operations; else the rule is
// what it was, as the library has it.
func expression(code []byte, to *rule) {
	in := cfi.Cursor{B: code}
	shape := make([]uint8, 0, maxSteps)
	var values [maxSteps][2]int64
	for in.More() && len(shape) < maxSteps {
		op, first, second, ok := operation(&in)
		if !ok {
			return
		}
		values[len(shape)] = [2]int64{first, second}
		shape = append(shape, op)
	}
	if !in.Bad {
		was := to.offset
		*to = recognised(shape, &values)
		to.offset = was // which a def_cfa_register may come back to
	}
}

// recognised is the rule of an expression: of the three shapes that the BPF programs can
// follow, and else none.
func recognised(shape []uint8, values *[maxSteps][2]int64) rule {
	base, offset := uint8(values[0][0]), values[0][1]
	switch {
	case string(shape) == pltShape:
		return rule{kind: plt}
	case string(shape) == plusShape:
		return rule{kind: plus, base: base, before: offset}
	case string(shape) == pointedShape:
		return rule{kind: pointedAt, base: base, before: offset}
	case string(shape) == beyondShape:
		return rule{kind: pointedAt, base: base, before: offset, after: values[2][0]}
	case string(shape) == arrayShape && values[1][1] == 0 && values[2][0] == 8:
		return rule{kind: inArray}
	}
	return rule{kind: undefined}
}

// operation reads one operation and its operands.
func operation(r *cfi.Cursor) (op uint8, first, second int64, ok bool) {
	op = r.U8()
	switch {
	case op >= cfi.ExLit0 && op < cfi.ExLit0+32:
		return cfi.ExLit0, int64(op - cfi.ExLit0), 0, true
	case op >= cfi.ExBreg0 && op <= cfi.ExBregLast:
		return cfi.ExBreg0, int64(op - cfi.ExBreg0), r.SLEB(), true
	case op == cfi.ExConstU, op == cfi.ExPlusU:
		return op, int64(r.ULEB()), 0, true
	case op == cfi.ExConstS:
		return op, r.SLEB(), 0, true
	case op == cfi.ExDeref, op >= cfi.ExRot && op <= cfi.ExNe:
		return op, 0, 0, true
	}
	return 0, 0, 0, false
}
