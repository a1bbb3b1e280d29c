package cudaapi

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"golang.org/x/arch/x86/x86asm"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/uprobe/elffile"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// NCCL's communicators (struct ncclComm, src/include/comm.h) begin with a magic number since 2.21, and have the rank,
// the number of ranks and the GPU next to each other. Before them is a hash that is the same for all ranks (2.18 to
// 2.32.3). Where that is in a library is read from the code of the getters that it exports.
const (
	ncclMagic   = 0x0280028002800280
	hashBytes   = 8
	fieldBytes  = 4
	memberBytes = hashBytes + 3*fieldBytes
	newestHash  = 23203   // the newest release whose source was read, or of 2.31.2 and 2.32.3 the debug information
	maxGetter   = 4096    // bytes of code
	maxField    = 4 << 20 // offset
	maxRanks    = 1 << 20
)

// getters return the fields of a communicator, in their order there.
var getters = []string{"ncclCommUserRank", "ncclCommCount", "ncclCommCuDevice"}

// rankField is where a library's communicators have their rank.
type rankField struct {
	offset  uint64 // 0: not known
	release int    // of the library
}

// findRank returns where a library's communicators have their rank; 0 where its code does not tell.
func findRank(r io.ReaderAt, machine elf.Machine, functions []elffile.Function) uint64 {
	fieldOf := fieldOfAMD64
	if machine == elf.EM_AARCH64 {
		fieldOf = fieldOfARM64
	}
	fields, seen := make([]uint64, len(getters)), make([]bool, len(getters))
	for _, fn := range functions {
		i := slices.Index(getters, fn.Name)
		if i < 0 || seen[i] {
			continue
		}
		seen[i] = true // a library may have many of one name
		code := make([]byte, min(fn.Size, maxGetter))
		if _, err := r.ReadAt(code, int64(fn.Offset)); err != nil {
			return 0
		}
		fields[i] = fieldOf(code)
	}
	first := fields[0]
	if first < hashBytes || fields[1] != first+fieldBytes || fields[2] != first+2*fieldBytes {
		return 0
	}
	return first
}

// fieldOfAMD64 returns which field of a communicator a getter(comm, *out) returns: what it loads from there and stores
// to *out. It is 0 where that is not certain.
func fieldOfAMD64(code []byte) uint64 {
	comm, out := map[x86asm.Reg]bool{x86asm.RDI: true}, map[x86asm.Reg]bool{x86asm.RSI: true}
	loaded := map[x86asm.Reg]uint64{}
	var field uint64
	for called := false; len(code) > 0; {
		inst, err := x86asm.Decode(code, 64)
		if err != nil {
			code = code[1:] // a hint that the decoder does not know
			continue
		}
		code = code[inst.Len:]
		switch inst.Op {
		case x86asm.CALL:
			called = true
			delete(comm, x86asm.RDI)
			delete(out, x86asm.RSI)
			clear(loaded)
		case x86asm.MOV:
			to, isReg := inst.Args[0].(x86asm.Reg)
			from, _ := inst.Args[1].(x86asm.Reg)
			mem, isMem := inst.Args[1].(x86asm.Mem)
			at, isStore := inst.Args[0].(x86asm.Mem)
			switch {
			case isReg && !called && comm[from]:
				comm[to] = true
			case isReg && !called && out[from]:
				out[to] = true
			case isReg && isMem && comm[mem.Base] && mem.Index == 0 && mem.Disp > 0 && mem.Disp < maxField:
				loaded[to] = uint64(mem.Disp)
			case isStore && out[at.Base] && at.Index == 0 && at.Disp == 0 && loaded[from] > 0:
				if field != 0 && field != loaded[from] {
					return 0
				}
				field = loaded[from]
			}
		}
	}
	return field
}

// fieldOfARM64 is fieldOfAMD64 for arm64, where a large offset takes two instructions: an addition and the load.
func fieldOfARM64(code []byte) uint64 {
	comm, out := map[uint32]uint64{0: 0}, map[uint32]bool{1: true} // registers; comm: and what has been added
	loaded := map[uint32]uint64{}
	var field uint64
	for called := false; len(code) >= 4; code = code[4:] {
		op := binary.LittleEndian.Uint32(code)
		to, from, imm := op&31, op>>5&31, uint64(op>>10&0xfff)
		added, known := comm[from]
		switch {
		case op>>26 == 0x25 || op&0xfffffc1f == 0xd63f0000: // bl, blr: the callee may change x0 to x18
			called = true
			for r := range uint32(19) {
				delete(comm, r)
				delete(out, r)
			}
			clear(loaded)
		case op&0xffe0ffe0 == 0xaa0003e0 && !called: // mov x, x
			from = op >> 16 & 31
			if added, known := comm[from]; known {
				comm[to] = added
			}
			out[to] = out[from]
		case op&0xff800000 == 0x91000000 && known: // add x, x, #imm{, lsl #12}
			comm[to] = added + imm<<(12*(op>>22&1))
		case op&0xffc00000 == 0xb9400000 && known: // ldr w, [x, #imm]
			loaded[to] = added + imm*fieldBytes
		case op&0xffc00000 == 0xb9000000 && imm == 0 && out[from] && loaded[to] > 0: // str w, [x]
			if field != 0 && field != loaded[to] {
				return 0
			}
			field = loaded[to]
		}
	}
	if field >= maxField {
		return 0
	}
	return field
}

// use is what a function does with a communicator.
type use uint8

const (
	exchanges use = 1 + iota
	makes
	ends
)

// probed notes that a function is probed. The caller holds the lock of the source.
func (c *communicators) probed(index uint16, row *cuda.Row) {
	var does use
	switch {
	case row.Exchanges():
		does = exchanges
	case row.Name == "ncclCommInitRank" || row.Name == "ncclCommInitRankConfig":
		does = makes
	case row.Name == "ncclCommDestroy" || row.Name == "ncclCommAbort":
		does = ends
	default:
		return
	}
	var uses []use
	if known := c.uses.Load(); known != nil {
		uses = slices.Clone(*known)
	}
	for len(uses) <= int(index) {
		uses = append(uses, 0)
	}
	uses[index] = does
	c.uses.Store(&uses)
}

// observe lets the communicators be read that calls use for the first time.
func (c *communicators) observe(batch []event.Event) {
	uses := c.uses.Load()
	if uses == nil {
		return
	}
	for i := range batch {
		e := &batch[i]
		if e.Kind != event.Call || int(e.Func) >= len(*uses) {
			continue
		}
		switch (*uses)[e.Func] {
		case exchanges:
			c.used(e.PID, cuda.ReadExchange(&e.Args).Communicator, e.TS)
		case makes:
			if e.Flags&event.Deref != 0 && e.Ret == 0 {
				c.end(e.PID, e.Args[0])
				c.used(e.PID, e.Args[0], e.TS)
			}
		case ends:
			c.end(e.PID, e.Args[0])
		}
	}
}

// row returns what a communicator of a library says of itself; false where it says nothing, or nothing yet.
func (f rankField) row(a *commAnswer) (recording.Communicator, bool) {
	if len(a.Member) != memberBytes || a.Magic != ncclMagic {
		return recording.Communicator{}, false
	}
	number := func(i int) int { return int(int32(binary.LittleEndian.Uint32(a.Member[hashBytes+i*fieldBytes:]))) }
	row := recording.Communicator{PID: a.PID, Address: a.Address, Rank: number(0), Ranks: number(1), GPU: number(2)}
	if f.release > 0 && f.release <= newestHash {
		hash := binary.LittleEndian.Uint64(a.Member)
		if hash == 0 { // a library makes it last
			return recording.Communicator{}, false
		}
		row.Hash = fmt.Sprintf("%x", hash)
	}
	return row, row.Rank >= 0 && row.Rank < row.Ranks && row.Ranks <= maxRanks && row.GPU >= 0
}

// Communicators returns what NCCL's communicators say of themselves, of the processes that are wanted, by process and
// address.
func (s *Source) Communicators(want func(proc.ID) bool) []recording.Communicator {
	return s.comms.rows(want)
}
