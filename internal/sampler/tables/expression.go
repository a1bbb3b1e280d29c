package tables

// The operations that occur in unwind tables: DWARF 5, table 7.9.
const (
	exDeref    = 0x06
	exConstu   = 0x10
	exConsts   = 0x11
	exRot      = 0x17
	exPlusU    = 0x23
	exNe       = 0x2e
	exLit0     = 0x30
	exBreg0    = 0x70
	exBregLast = 0x8f
)

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

// expression reads an expression and makes a rule of it, where it knows all operations;
// else the rule is what it was, as the library has it.
func expression(r *cursor, to *rule) {
	n := r.uleb()
	from := r.pos
	if r.skip(n); r.bad {
		return
	}
	in := cursor{b: r.b[from:r.pos]}
	shape := make([]uint8, 0, maxSteps)
	var values [maxSteps][2]int64
	for in.more() && len(shape) < maxSteps {
		op, first, second, ok := operation(&in)
		if !ok {
			return
		}
		values[len(shape)] = [2]int64{first, second}
		shape = append(shape, op)
	}
	if !in.bad {
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
func operation(r *cursor) (op uint8, first, second int64, ok bool) {
	op = r.u8()
	switch {
	case op >= exLit0 && op < exLit0+32:
		return exLit0, int64(op - exLit0), 0, true
	case op >= exBreg0 && op <= exBregLast:
		return exBreg0, int64(op - exBreg0), r.sleb(), true
	case op == exConstu, op == exPlusU:
		return op, int64(r.uleb()), 0, true
	case op == exConsts:
		return op, r.sleb(), 0, true
	case op == exDeref, op >= exRot && op <= exNe:
		return op, 0, 0, true
	}
	return 0, 0, 0, false
}
