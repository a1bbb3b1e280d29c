package cudaapi

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/arch/x86/x86asm"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/uprobe/elffile"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// NCCL's communicators (struct ncclComm, src/include/comm.h) begin with a magic number since 2.21, and have the rank,
// the number of ranks and the GPU next to each other. Before them is a hash that is the same for all ranks (2.18 to
// 2.30.7). Where that is in a library is read from the code of the getters that it exports.
const (
	ncclMagic   = 0x0280028002800280
	hashBytes   = 8
	fieldBytes  = 4
	memberBytes = hashBytes + 3*fieldBytes
	newestHash  = 23007   // the newest release whose source was read
	maxGetter   = 4096    // bytes of code
	maxField    = 4 << 20 // offset
	maxRanks    = 1 << 20
	maxComms    = 4096 // of all processes
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
	fields := make([]uint64, len(getters))
	for _, fn := range functions {
		i := slices.Index(getters, fn.Name)
		if i < 0 {
			continue
		}
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

// member is a communicator of a process.
type member struct {
	pid     uint32
	address uint64
}

// comm is what a communicator says of itself.
type comm struct {
	row   recording.Communicator
	known bool
	ended bool   // its address may be another's soon
	mixed bool   // its address was used by several that differ
	tries uint   // that failed
	next  uint64 // ns: when it is tried again
}

// How often a communicator is read that could not be, as where its library is only about to be known, and the base of
// the pauses between, ns, which double.
const (
	maxTries  = 10
	firstWait = 10_000_000
)

// use is what a function does with a communicator.
type use uint8

const (
	exchanges use = 1 + iota
	makes
	ends
)

// communicators are what communicators say of themselves, read when they are first used.
type communicators struct {
	uses atomic.Pointer[[]use] // by number of a function; written under the lock of the source, as a whole
	mu   sync.Mutex
	all  map[member]*comm
}

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

// observe reads the communicators that calls use for the first time; fields returns where a process's libraries have
// the rank in them.
func (c *communicators) observe(batch []event.Event, fields func(pid uint32) []rankField) {
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
			c.used(member{e.PID, cuda.ReadExchange(&e.Args).Communicator}, e.TS, fields)
		case makes:
			if m := (member{e.PID, e.Args[0]}); e.Flags&event.Deref != 0 && e.Ret == 0 {
				c.end(func(other member) bool { return other == m })
				c.used(m, e.TS, fields)
			}
		case ends:
			c.end(func(m member) bool { return m == member{e.PID, e.Args[0]} })
		}
	}
}

// used reads a communicator that is new. An address that was used again, by a communicator that differs, is not known.
func (c *communicators) used(m member, at uint64, fields func(pid uint32) []rankField) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.all[m]
	if before != nil && !before.ended &&
		(before.known || before.mixed || before.tries == maxTries || at < before.next) {
		return
	}
	if c.all == nil || len(c.all) >= maxComms {
		c.all = map[member]*comm{}
	}
	now := &comm{}
	for _, f := range fields(m.pid) {
		if now.row, now.known = f.read(m); now.known {
			break
		}
	}
	switch {
	case before != nil && (before.mixed || before.ended && before.known && before.row != now.row):
		now = &comm{mixed: true}
	case !now.known:
		now = &comm{tries: 1}
		if before != nil && !before.ended {
			now.tries += before.tries
		}
		now.next = at + firstWait<<now.tries
	}
	c.all[m] = now
}

// end lets communicators be read again where their addresses are used again.
func (c *communicators) end(which func(member) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for m, known := range c.all {
		if which(m) {
			known.ended = true
		}
	}
}

// rows returns what is known, by process and address.
func (c *communicators) rows() []recording.Communicator {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []recording.Communicator
	for _, known := range c.all {
		if known.known {
			out = append(out, known.row)
		}
	}
	slices.SortFunc(out, func(a, b recording.Communicator) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.Address, b.Address))
	})
	return out
}

// read reads what a communicator of a library says of itself.
func (f rankField) read(m member) (recording.Communicator, bool) {
	var magic [8]byte
	var fields [memberBytes]byte
	local := []unix.Iovec{{Base: &magic[0]}, {Base: &fields[0]}}
	local[0].SetLen(len(magic))
	local[1].SetLen(len(fields))
	remote := []unix.RemoteIovec{
		{Base: uintptr(m.address), Len: len(magic)},
		{Base: uintptr(m.address + f.offset - hashBytes), Len: len(fields)},
	}
	n, err := unix.ProcessVMReadv(int(m.pid), local, remote, 0)
	if err != nil || n != len(magic)+len(fields) || binary.LittleEndian.Uint64(magic[:]) != ncclMagic {
		return recording.Communicator{}, false
	}
	number := func(i int) int { return int(int32(binary.LittleEndian.Uint32(fields[hashBytes+i*fieldBytes:]))) }
	row := recording.Communicator{
		PID: m.pid, Address: m.address, Rank: number(0), Ranks: number(1), GPU: number(2),
	}
	if f.release <= newestHash {
		row.Hash = fmt.Sprintf("%x", binary.LittleEndian.Uint64(fields[:]))
	}
	return row, row.Rank >= 0 && row.Rank < row.Ranks && row.Ranks <= maxRanks && row.GPU >= 0
}

// rankFields returns where the communicators of a process's libraries have their rank.
func (s *Source) rankFields(pid uint32) []rankField {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []rankField
	for _, p := range s.procs {
		for _, l := range p.libraries {
			if p.pid == pid && l.ranks.offset > 0 {
				out = append(out, l.ranks)
			}
		}
	}
	return out
}

// Communicators returns what NCCL's communicators say of themselves, by process and address.
func (s *Source) Communicators() []recording.Communicator { return s.comms.rows() }
