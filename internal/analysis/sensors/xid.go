package sensors

import "github.com/inferscope/inferscope/internal/recording"

// xid is what a code means, by docs.nvidia.com/deploy/xid-errors.
type xid struct {
	meaning string
	device  bool // the whole GPU is concerned, whoever uses it
}

// xids are the codes that stop work, or tell of a GPU that is about to fail.
var xids = map[int]xid{
	13:  {"a kernel failed, as a rule by an access out of bounds", false},
	31:  {"a kernel used an address that is not mapped", false},
	32:  {"a command was damaged on its way to the GPU", false},
	43:  {"the GPU stopped work of a process that had failed", false},
	45:  {"work was ended, mostly after another error", false},
	48:  {"a memory error that could not be corrected", true},
	63:  {"a damaged row of memory was replaced", false},
	64:  {"a damaged row of memory could not be replaced", true},
	74:  {"an NVLink failed", true},
	79:  {"the GPU has fallen off the bus", true},
	92:  {"many memory errors were corrected", false},
	94:  {"a memory error ended one program", false},
	95:  {"a memory error ended all programs", true},
	119: {"the GPU's own processor does not answer", true},
	120: {"the GPU's own processor failed", true},
	154: {"the GPU needs a reset or a restart of the machine", true},
}

// XidMeaning reports what an error of a GPU means; "" where that is not known here.
func XidMeaning(code int) string { return xids[code].meaning }

// OfProgram reports whether an error is as a rule one of the program's own.
func OfProgram(code int) bool { return code == 13 || code == 31 || code == 43 }

// Concerns reports whether an error can have stopped a program that uses these GPUs (by index): it was the program's
// work, or the whole GPU failed.
func Concerns(x *recording.Xid, used map[int]bool) bool {
	return x.PID != 0 || xids[x.Code].device && (x.GPU < 0 || used[x.GPU])
}
