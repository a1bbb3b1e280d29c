package gpu

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// tables are shared by the readers of all rings.
type tables struct {
	calls   *callTable
	kernels *names
	ranges  *names
}

// future is how far ahead of now the end of an event may lie, in ns: what was read off the
// clock before a slot was written lies behind it, so only a liar needs more.
const future = 1_000_000_000

// disabled is what recording.GPUWindow.End says of a window that left CUPTI in the second best way.
const disabled = "disabled"

// kept is what it says of a window after which the agent stayed subscribed to CUPTI.
const kept = "kept"

// ending names an enum agent_end of a window that was open; "" for another number.
func ending(end int32) string {
	switch end {
	case endFinalized:
		return "finalized"
	case endDisabled:
		return disabled
	case endKept:
		return kept
	}
	return ""
}

// decoder turns the slots of one ring into events and facts. It is used by one goroutine.
type decoder struct {
	tables *tables
	facts  *facts
	tids   *proc.TIDs
	pid    uint32
	payer  proc.Payer // of its names
	from   uint64     // ns: nothing can have happened before
	now    uint64     // ns: of this pass
	namer  namer
	count  counts                // of this pass
	newest uint64                // ns: the latest end of what the GPU did in this pass
	seen   uint64                // records of what the GPU did since the last window
	lost   uint64                // slots that the ring had no room for since the last window
	steps  recording.WindowSteps // of the window whose end comes next; Began is 0 where they are not known
}

// decode looks at a copy of a slot, whose PID is its sequence number still. It returns
// true where e is an event now. It allocates nothing but for names.
func (d *decoder) decode(e *event.Event) bool {
	if uint8(e.Kind) != kindText && d.namer.drop() {
		d.count.malformed++
	}
	e.PID = d.pid
	switch uint8(e.Kind) {
	case uint8(event.Call):
		return d.call(e)
	case uint8(event.Kernel),
		uint8(event.Copy),
		uint8(event.Set),
		uint8(event.Sync),
		uint8(event.Overhead),
		uint8(event.Range):
		return d.activity(e)
	}
	if !d.fact(e) {
		d.count.malformed++
	}
	return false
}

// timely reports whether e lies within the time in which it can have happened.
func (d *decoder) timely(e *event.Event) bool {
	limit := d.now + future
	return e.TS >= d.from && e.TS <= limit && e.Dur <= limit-e.TS
}

func (d *decoder) call(e *event.Event) bool {
	index, ok := d.tables.calls.lookup(e.Func)
	if !ok || !d.timely(e) {
		d.count.malformed++
		return false
	}
	e.Func = index
	e.TID = d.tids.Host(e.TID, d.now)
	e.Flags = e.Flags&(event.Timed|event.NCCL) | event.Correlated
	if e.Flags&event.Timed == 0 {
		e.Dur = 0
	}
	return true
}

func (d *decoder) activity(e *event.Event) bool {
	if !d.timely(e) {
		d.count.malformed++
		return false
	}
	e.Flags = event.Timed
	switch e.Kind {
	case event.Kernel, event.Copy, event.Set:
		d.newest = max(d.newest, e.End())
		d.seen++
	}
	switch e.Kind {
	case event.Kernel:
		d.count.kernels++
		e.Ret = get(d.namer.kernels, e.Ret)
	case event.Range:
		e.Func, e.Args[2], e.Args[3] = event.NVTXRange, 0, 0 // what only scopes have
		e.Ret = get(d.namer.ranges, e.Ret)
		e.TID = d.tids.Host(e.TID, d.now)
	case event.Overhead:
		if e.TID != 0 {
			e.TID = d.tids.Host(e.TID, d.now)
		}
	}
	return true
}

// fact takes a slot that is no event; false where no agent writes such a one.
func (d *decoder) fact(e *event.Event) bool {
	switch uint8(e.Kind) {
	case kindName:
		return d.namer.begin(uint8(e.Flags), e.Ret, int(e.Func), description{
			registers: uint32(e.Dur), staticShared: uint32(e.Dur >> 32), local: uint32(e.TS),
		})
	case kindText:
		return d.text(e)
	case kindOpened:
		if !d.timely(e) {
			return false
		}
		d.facts.open(e.TS, e.Args[2])
		return true
	case kindSteps:
		return d.stepped(e)
	case kindHold:
		return d.held(e)
	case kindWindow:
		return d.window(e)
	case kindDevice:
		return d.device(e)
	}
	return false
}

// text takes an AGENT_TEXT.
func (d *decoder) text(e *event.Event) bool {
	if d.namer.pending.left == 0 {
		return false
	}
	raw := (*[slotBytes]byte)(unsafe.Pointer(e))
	done := false
	for _, part := range [][]byte{
		raw[textA : textA+textALen], raw[textB : textB+textBLen], raw[textC : textC+textCLen],
	} {
		if done = d.namer.more(part); done {
			break
		}
	}
	if done {
		d.named()
	}
	return true
}

// named keeps a name that is whole.
func (d *decoder) named() {
	p := &d.namer.pending
	if p.kind == nameDevice {
		if p.id <= maxDevices {
			set(&d.namer.devices, p.id, clean(string(p.text), 256))
		}
		return
	}
	p.d.text = string(p.text)
	table, list := d.tables.kernels, &d.namer.kernels
	if p.kind == nameRange {
		table, list = d.tables.ranges, &d.namer.ranges
	}
	number := table.add(d.payer, p.d)
	if number == 0 {
		d.count.unnamed++
	}
	set(list, p.id, number)
}

// held takes an AGENT_HOLD.
func (d *decoder) held(e *event.Event) bool {
	drain, early, late := e.Args[0], e.Args[1], e.Args[2]
	if !d.timely(e) || drain > e.Dur {
		return false
	}
	early, late = min(early, drain), min(late, e.Dur-drain) // counted by the kernel's clock, and read a moment later
	d.facts.section(drain-early, early+late, e.Dur-drain-late, drain < e.Dur)
	return true
}

func (d *decoder) window(e *event.Event) bool {
	if e.Ret == endRefused {
		d.facts.refusedOne()
		return true
	}
	end := ending(e.Ret)
	if end == "" || !d.timely(e) {
		return false
	}
	d.facts.ended(recording.GPUWindow{
		PID: d.pid, From: e.TS, To: e.TS + e.Dur, Activity: true, Calls: e.Func&windowCalls != 0,
		Dropped: saturating(e.Args[1], d.lost), End: end,
	}, e.Args[1], e.Func&windowStarved != 0)
	held := uint64(0)
	own := e.Func&windowOwn != 0
	if e.Ret == endFinalized && !own { // a thread of the process itself did that
		held = e.Args[3]
	}
	d.facts.over(e.TS, e.TS+e.Dur, e.Args[3], held, saturating(d.seen, saturating(e.Args[1], d.lost)))
	d.steps.Own = own
	d.facts.took(d.steps, e.TS, e.TS+e.Dur)
	d.steps = recording.WindowSteps{}
	d.seen, d.lost = 0, 0
	return true
}

func (d *decoder) device(e *event.Event) bool {
	if e.Ret < 0 {
		return false
	}
	d.facts.device(recording.Device{
		PID: d.pid, ID: uint32(e.Ret), Name: get(d.namer.devices, int32(e.TID&0x7fffffff)),
		UUID:     uuid(e.TS, e.Dur, e.Flags&devicePart != 0),
		Memory:   e.Args[0],
		PeakRate: e.Args[1],
		SMs:      uint32(e.Args[2]),
		Major:    uint32(e.Args[2] >> 32 & 0xffff), Minor: uint32(e.Args[2] >> 48),
	})
	return true
}

// uuid writes the UUID of a GPU or of a part of one (MIG) as nvidia-smi does: 16 bytes, as cuDeviceGetUuid_v2 gives
// them; "" where there is none.
func uuid(first, second uint64, part bool) string {
	if first|second == 0 {
		return ""
	}
	b := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, first), second)
	kind := "GPU"
	if part {
		kind = "MIG"
	}
	return fmt.Sprintf("%s-%x-%x-%x-%x-%x", kind, b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
