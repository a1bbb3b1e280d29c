package cfi

import (
	"errors"
	"math"
	"reflect"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

func TestNumbers(t *testing.T) {
	c := Cursor{B: []byte{
		0x7f, 0xe5, 0x8e, 0x26, // 127, 624485 (DWARF 5, figure 22)
		0x7f, 0x80, 0x7f, 0x3f, // -1, -128, 63
		0xfe, 0xff, 0xfe, 0xff, 1,
	}}
	for _, want := range []uint64{127, 624485} {
		if v := c.ULEB(); v != want {
			t.Errorf("unsigned %d, want %d", v, want)
		}
	}
	for _, want := range []int64{-1, -128, 63} {
		if v := c.SLEB(); v != want {
			t.Errorf("signed %d, want %d", v, want)
		}
	}
	if v := int64(c.Signed(2)); v != -2 {
		t.Errorf("two bytes: %d, want -2", v)
	}
	if v := c.Number(2); v != 0xfffe {
		t.Errorf("two bytes: %#x, want 0xfffe", v)
	}
	if c.Bad || c.U8() != 1 || c.More() {
		t.Error("it ends elsewhere")
	}
	if v := c.U8(); v != 0 || !c.Bad {
		t.Errorf("behind its end: %d", v)
	}
	long := Cursor{B: []byte{0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01}}
	if v := long.ULEB(); v != 0 || long.Bad {
		t.Errorf("bits beyond 64: %#x", v)
	}
	if b := (&Cursor{B: make([]byte, 4)}).Take(math.MaxUint64); b != nil {
		t.Errorf("took %d bytes of 4", len(b))
	}
}

func TestPointers(t *testing.T) {
	for encoding, want := range map[uint8]struct {
		value uint64
		bad   bool
	}{
		peuData4: {0xfffffff0, false}, PESData4: {math.MaxUint64 - 15, false}, pepcRel | PESData4: {0x1000 - 16, false},
		PEDataRel | PESData4: {
			0x5000 - 16, false,
		}, peOmitted: {0, false}, 0x20 | PESData4: {0, true}, 0x80 | PESData4: {0, true}, 0x05: {0, true},
	} {
		c := Cursor{B: []byte{0xf0, 0xff, 0xff, 0xff}, Addr: 0x1000, Data: 0x5000}
		if v := c.Pointer(encoding); v != want.value || c.Bad != want.bad {
			t.Errorf("encoding %#x: %#x (bad: %v), want %#x (%v)", encoding, v, c.Bad, want.value, want.bad)
		}
	}
}

// common is a CIE "zPLR" with a personality, of code alignment 1 and data alignment -8.
var common = []byte{
	0, 0, 0, 0, 1, 'z', 'P', 'L', 'R', 0, 1, 0x78, 16, 7, 0x9b, 1, 2, 3, 4, 0x1b, 0x1b,
	opDefCFA,
	7,
	8,
	OpOffset | 16,
	1,
}

func TestCommon(t *testing.T) {
	var c Common
	must.NoError(t, c.Read(&Cursor{B: common}))
	want := Common{CodeAlign: 1, DataAlign: -8, Return: 16, Encoding: 0x1b, Augmented: true, Program: common[21:]}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("%+v, want %+v", c, want)
	}
	for n := range 21 {
		if err := new(Common).Read(&Cursor{B: common[:n]}); !errors.Is(err, ErrMalformed) {
			t.Errorf("%d bytes of it: %v", n, err)
		}
	}
}

func TestInstructions(t *testing.T) {
	c := Common{CodeAlign: 4, DataAlign: -8, Encoding: peuData4}
	r := Cursor{B: []byte{
		opDefCFA, 7, 16, opDefCFASF, 6, 0x7e, opDefCFARegister, 6,
		OpDefCFAOffset, 32, opDefCFAOffsetSF, 0x7f, opDefCFAExpr, 2, 0x77, 8,
		OpAdvance | 3, OpAdvance2, 1, 2, opSetLoc, 9, 0, 0, 0, OpOffset |
			6, 2, opOffsetExtended, 40, 3, opOffsetExtSF, 3, 0x7f, opGNUNegOffset, 3, 1,
		opValOffset, 3, 1, opValOffsetSF, 3, 1, OpRestore |
			6, opRestoreExt, 40, opUndefined, 16, opSameValue, 3, opRegister, 16, 2,
		opExpression, 6, 1, 0x06, opValExpression, 6, 1, 0x30, opRemember,
		opRestoreState, opNegateRASign, opGNUArgsSize, 8, opNop,
	}}
	for _, want := range []Instruction{
		{Kind: CFA, Register: 7, Offset: 16},
		{Kind: CFA, Register: 6, Offset: 16},
		{Kind: CFARegister, Register: 6},
		{Kind: CFAOffset, Offset: 32},
		{Kind: CFAOffset, Offset: 8},
		{Kind: CFAExpression, Expression: []byte{0x77, 8}},
		{Kind: Advance, Value: 12},
		{Kind: Advance, Value: 4 * 0x201},
		{Kind: SetLocation, Value: 9},
		{Kind: AtOffset, Register: 6, Offset: -16},
		{Kind: AtOffset, Register: 40, Offset: -24},
		{Kind: AtOffset, Register: 3, Offset: 8},
		{Kind: AtOffset, Register: 3, Offset: 8},
		{Kind: IsOffset, Register: 3, Offset: -8},
		{Kind: IsOffset, Register: 3, Offset: -8},
		{Kind: Restore, Register: 6},
		{Kind: Restore, Register: 40},
		{Kind: Undefined, Register: 16},
		{Kind: SameValue, Register: 3},
		{Kind: InRegister, Register: 16, Value: 2},
		{Kind: AtAddress, Register: 6, Expression: []byte{0x06}},
		{Kind: IsExpression, Register: 6, Expression: []byte{0x30}},
		{Kind: Remember},
		{Kind: RestoreState},
		{Kind: NegateRASign},
		{},
		{},
	} {
		if in, err := c.Next(&r); err != nil || !reflect.DeepEqual(in, want) {
			t.Fatalf("%+v (%v), want %+v", in, err, want)
		}
	}
	if r.More() || r.Bad {
		t.Error("something is left")
	}
	if _, err := c.Next(&Cursor{B: []byte{0x3f, 0}}); !errors.Is(err, ErrMalformed) {
		t.Errorf("no instruction: %v", err)
	}
}

// FuzzInstructions: whatever the bytes, each instruction takes one at least, and none reaches behind them.
func FuzzInstructions(f *testing.F) {
	f.Add(common)
	fuzzing.Run(f, func(t *testing.T, b []byte) {
		var c Common
		if c.Read(&Cursor{B: b}) != nil {
			c = Common{CodeAlign: 1, DataAlign: -8, Encoding: 0x1b, Program: b}
		}
		r := Cursor{B: c.Program}
		for at := -1; r.More(); {
			if r.Pos <= at || r.Pos > len(r.B) {
				t.Fatalf("at %d of %d after %d", r.Pos, len(r.B), at)
			}
			at = r.Pos
			if _, err := c.Next(&r); err != nil {
				return
			}
		}
	})
}
