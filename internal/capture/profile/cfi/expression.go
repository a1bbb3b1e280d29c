package cfi

// The operations of expressions that occur in unwind tables: DWARF 5, table 7.9. There are
// no jumps among them: none of the compilers writes them there.
const (
	ExDeref    = 0x06
	ExConst1U  = 0x08
	ExConst8S  = 0x0f
	ExConstU   = 0x10
	ExConstS   = 0x11
	ExDup      = 0x12
	ExDrop     = 0x13
	ExOver     = 0x14
	ExSwap     = 0x16
	ExRot      = 0x17
	ExAnd      = 0x1a
	ExMinus    = 0x1c
	ExMul      = 0x1e
	ExNeg      = 0x1f
	ExNot      = 0x20
	ExOr       = 0x21
	ExPlus     = 0x22
	ExPlusU    = 0x23
	ExShl      = 0x24
	ExShr      = 0x25
	ExShra     = 0x26
	ExXor      = 0x27
	ExEq       = 0x29
	ExNe       = 0x2e
	ExLit0     = 0x30
	ExBreg0    = 0x70
	ExBregLast = 0x8f
	ExBregX    = 0x92
	ExNop      = 0x96
)
