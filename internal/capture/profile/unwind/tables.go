// Package unwind reads the unwind tables of ELF files (.eh_frame) into the form that
// the native unwinder's BPF programs look up: sorted addresses, each with the number of
// a rule that holds from there on.
//
// The library brings a reader of its own (nativeunwind/elfunwindinfo), which makes an
// object of every function and a record of 16 bytes of every rule: 242 MB of garbage and
// 66 MB live for libtorch_cpu, in 0.8 s. This one does x86-64 .eh_frame alone, what the
// big libraries have, in a quarter of the time and a tenth of the memory. All else (Go's
// tables, .debug_frame, arm64, musl's entry, libcrypto's generic registers) is read by the
// library's and brought into the same form; the tests hold the two against each other.
//
// The file belongs to a target and is hostile input to a root process: it is read, never
// mapped, and every length is bounded.
package unwind

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"go.opentelemetry.io/ebpf-profiler/nativeunwind/stackdeltatypes"
	"go.opentelemetry.io/ebpf-profiler/support"
)

// Limits of what is read. The largest table met, of libtorch_cpu 2.15, has 353,000
// functions and 1.4 million rules; the BPF programs search 8 million at most.
const (
	maxRules  = 1<<23 - 1
	maxBlocks = 1 << 22
	maxPages  = 1 << 16 // 4 GiB of code: all that the BPF programs' map of pages has room for
)

// Errors of this package.
var (
	ErrTooLarge  = errors.New("more unwind rules than the unwinder has room for")
	errMalformed = errors.New("malformed unwind tables")
	// errOther means that the library's reader has to do.
	errOther = errors.New("unwind tables of another kind")
)

// numbering numbers unwind rules. The BPF programs have one array of them for all files.
type numbering interface {
	// Number returns the number of a rule, which is new or known; an error where there are too many.
	Number(info support.UnwindInfo) (uint16, error)
}

// Rules that are no entries of the array (STACK_DELTA_COMMAND_FLAG of the library's types.h).
const (
	ruleInvalid = uint16(support.UnwindCommandInvalid) | support.DeltaCommandFlag
	ruleSignal  = uint16(support.UnwindCommandSignal) | support.DeltaCommandFlag
)

// block is a stretch of code: of one function, mostly.
type block struct {
	start, length uint32 // address in the file's numbering, bytes
	first         uint32 // rule
	count         uint16 // of rules
}

func (b *block) end() uint64 { return uint64(b.start) + uint64(b.length) }

// Table is the unwind rules of one file.
type Table struct {
	numbers numbering
	blocks  []block
	offsets chunks[uint32] // of each rule, bytes from its block's start
	rules   chunks[uint16]

	deltas []stackdeltatypes.StackDelta // of the block at hand
	recent [recentRules]recentRule
}

// recentRules is how many rules are found without asking for their number. A library has
// hundreds, of which few are used at a time.
const recentRules = 256

type recentRule struct {
	info   support.UnwindInfo
	number uint16
	known  bool
}

// chunks is a list that grows without being copied.
type chunks[T any] struct {
	all    [][]T
	length int
}

const chunkLength = 1 << 14

func (c *chunks[T]) add(v T) {
	at := c.length / chunkLength
	if at == len(c.all) {
		c.all = append(c.all, make([]T, chunkLength))
	}
	c.all[at][c.length%chunkLength] = v
	c.length++
}

func (c *chunks[T]) get(i uint32) T { return c.all[i/chunkLength][i%chunkLength] }

// Reset empties a table, whose memory is used again.
func (t *Table) Reset() {
	t.blocks, t.offsets.length, t.rules.length = t.blocks[:0], 0, 0
}

// Release gives a table's memory back.
func (t *Table) Release() { *t = Table{numbers: t.numbers} }

// New returns an empty table.
func New(n numbering) *Table { return &Table{numbers: n} }

// begin begins a block.
func (t *Table) begin() { t.deltas = t.deltas[:0] }

// rule adds a rule to the block at hand, as StackDeltaArray.Add of the library does: the
// same one again says nothing new.
func (t *Table) rule(offset uint32, info support.UnwindInfo) {
	if info.Flags&support.UnwindFlagCommand != 0 {
		info = support.UnwindInfo{Flags: support.UnwindFlagCommand, Param: info.Param}
	}
	if n := len(t.deltas); n > 0 && t.deltas[n-1].Info == info {
		return
	}
	t.deltas = append(t.deltas, stackdeltatypes.StackDelta{Offset: offset, Info: info})
}

// finish adds the block at hand, from start to end.
func (t *Table) finish(start, end uint64) error {
	if end < start || end > math.MaxUint32 || len(t.deltas) > math.MaxUint16 {
		return fmt.Errorf("%w: a function from %#x to %#x", errOther, start, end)
	}
	if len(t.blocks) == maxBlocks || t.rules.length+len(t.deltas) > maxRules {
		return ErrTooLarge
	}
	b := block{start: uint32(start), length: uint32(end - start), first: uint32(t.rules.length)}
	if t.prolongs(b) {
		t.blocks[len(t.blocks)-1].length = uint32(end - uint64(t.blocks[len(t.blocks)-1].start))
		return nil
	}
	for i := 0; i < len(t.deltas); i++ {
		d := t.deltas[i]
		offset := d.Offset
		if i+1 < len(t.deltas) {
			if d.Info.MergeOpcode = merged(&d, &t.deltas[i+1]); d.Info.MergeOpcode != 0 {
				i++ // the next one is said with it
			}
		}
		if err := t.store(offset, d.Info); err != nil {
			return err
		}
	}
	b.count = uint16(t.rules.length - int(b.first))
	t.blocks = append(t.blocks, b)
	return nil
}

// prolongs reports whether a block only prolongs the one before it: both have one rule, the same.
func (t *Table) prolongs(b block) bool {
	if len(t.deltas) != 1 || len(t.blocks) == 0 {
		return false
	}
	last := &t.blocks[len(t.blocks)-1]
	if last.count != 1 || last.end() > uint64(b.start) || uint64(b.start)-last.end() > stackdeltatypes.MinimumGap {
		return false
	}
	number, err := t.number(t.deltas[0].Info)
	return err == nil && number == t.rules.get(last.first) && t.deltas[0].Offset == t.offsets.get(last.first)
}

func (t *Table) store(offset uint32, info support.UnwindInfo) error {
	number, err := t.number(info)
	if err != nil {
		return err
	}
	t.offsets.add(offset)
	t.rules.add(number)
	return nil
}

func (t *Table) number(info support.UnwindInfo) (uint16, error) {
	if info.Flags&support.UnwindFlagCommand != 0 {
		return uint16(info.Param) | support.DeltaCommandFlag, nil
	}
	slot := uint32(
		info.Param,
	)>>3*5 + uint32(
		info.AuxParam,
	)>>3*3 + uint32(info.MergeOpcode)*17 + uint32(info.BaseReg)*29 + uint32(info.AuxBaseReg)
	r := &t.recent[slot%recentRules]
	if r.known && r.info == info {
		return r.number, nil
	}
	number, err := t.numbers.Number(info)
	if err == nil {
		*r = recentRule{info, number, true}
	}
	return number, err
}

// merged returns how two rules are said as one, 0 where they are not: a push and what
// follows it, one or two bytes on (calculateMergeOpcode of the library's execinfomanager).
func merged(a, b *stackdeltatypes.StackDelta) uint8 {
	apart := b.Offset - a.Offset
	switch {
	case a.Info.Flags&support.UnwindFlagCommand != 0, apart < 1 || apart > 2,
		a.Info.BaseReg != b.Info.BaseReg, a.Info.AuxBaseReg != b.Info.AuxBaseReg, a.Info.AuxParam != b.Info.AuxParam:
		return 0
	}
	switch b.Info.Param - a.Info.Param {
	case 8:
		return uint8(apart)
	case -8:
		return uint8(apart) | support.MergeOpcodeNegative
	}
	return 0
}

// sort orders the blocks by address.
func (t *Table) sort() {
	order := func(a, b block) int { // by hand: cmp.Compare of two numbers each would double the time
		if a.start < b.start {
			return -1
		}
		if a.start > b.start {
			return 1
		}
		return 0
	}
	if !slices.IsSortedFunc(t.blocks, order) {
		slices.SortStableFunc(t.blocks, order)
	}
}

// Pages returns the first page of code that the table says something of, as an
// address, and how many there are; 0 of an empty table.
func (t *Table) Pages() (first uint64, count int) {
	if len(t.blocks) == 0 {
		return 0, 0
	}
	first = uint64(t.blocks[0].start) &^ support.StackDeltaPageMask
	var end uint64
	for i := range t.blocks {
		end = max(end, t.blocks[i].end())
	}
	return first, int((end-first)>>support.StackDeltaPageBits) + 1
}

// Each calls f with all rules in order: their full addresses and numbers. What lies
// between functions has the rule that stacks end there.
func (t *Table) Each(f func(addr uint64, rule uint16)) {
	last, any := uint16(0), false
	add := func(addr uint64, rule uint16) {
		if !any || rule != last {
			f(addr, rule)
			last, any = rule, true
		}
	}
	for i := range t.blocks {
		b := &t.blocks[i]
		for k := b.first; k < b.first+uint32(b.count); k++ {
			addr, rule := uint64(b.start)+uint64(t.offsets.get(k)), t.rules.get(k)
			if rule == ruleSignal && addr > 0 {
				addr-- // the programs look up one byte before a return address
			}
			add(addr, rule)
		}
		if i+1 == len(t.blocks) || b.end()+stackdeltatypes.MinimumGap < uint64(t.blocks[i+1].start) {
			add(b.end(), ruleInvalid)
		}
	}
}
