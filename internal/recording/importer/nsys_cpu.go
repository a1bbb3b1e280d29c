package importer

import (
	"cmp"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// Types of rows of NVTX_EVENTS: NsysExport, ENUM_NSYS_EVENT_TYPE.
const (
	nvtxPushPop  = 59
	nvtxStartEnd = 60
)

// readRanges reads NVTX ranges; a row's own text goes over the one in StringIds.
func (n *nsys) readRanges() error {
	texts, err := n.rangeTexts()
	if err != nil {
		return err
	}
	return n.each(
		"NVTX_EVENTS",
		[]string{"start", "end", "eventType", "text", "textId", "globalTid"},
		func(v []int64) error {
			if v[2] != nvtxPushPop && v[2] != nvtxStartEnd || v[1] == 0 {
				return nil
			}
			ts, dur, ok := n.span(v[0], v[1])
			if !ok {
				return nil
			}
			name := texts[v[3]]
			if name == "" {
				name = n.strings[v[4]]
			}
			frame := recording.Frame{Kind: recording.NativeFrame, Name: name}
			numbered := strings.Contains(name, ", seq = ") // PyTorch numbers operators, and no ranges of a program
			name, emitted := emittedName(name)
			if emitted {
				frame = operatorFrame(name)
			}
			if err := n.addSpan(process(v[5]), thread(v[5]), ts, dur, frame); err != nil {
				return err
			}
			if numbered || emitted && strings.Contains(name, "::") {
				return nil // as in a file of torch.profiler, an operator is no range
			}
			i, err := n.rangeName(name)
			if err != nil {
				return err
			}
			n.process(process(v[5]))
			return n.add(event.Event{
				TS:    ts,
				Dur:   dur,
				PID:   process(v[5]),
				TID:   thread(v[5]),
				Kind:  event.Range,
				Flags: event.Timed,
				Ret:   i,
			})
		},
	)
}

// emittedName returns the name in a range of PyTorch's emit_nvtx, which writes numbers and shapes behind it, as in
// "aten::linear, seq = 12, op_id = 7", and whether it is one.
func emittedName(text string) (string, bool) {
	for _, mark := range []string{", seq = ", ", op_id = ", ", sizes = "} {
		if name, _, ok := strings.Cut(text, mark); ok {
			return name, true
		}
	}
	return text, false
}

// rangeTexts returns the texts that stand in rows of NVTX_EVENTS, by rowid.
func (n *nsys) rangeTexts() (map[int64]string, error) {
	out := map[int64]string{}
	has, err := n.columns("NVTX_EVENTS")
	if err != nil || !has["text"] {
		return out, err
	}
	rows, err := n.db.QueryContext(n.ctx,
		`SELECT rowid, substr(CAST("text" AS TEXT), 1, ?) FROM NVTX_EVENTS WHERE "text" IS NOT NULL`, maxText)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id int64
		var s string
		if err := rows.Scan(&id, &s); err != nil {
			return nil, err
		}
		if err := n.name(s); err != nil {
			return nil, err
		}
		out[id] = s
	}
	return out, rows.Err()
}

// readSwitches makes an interval of each time from leaving a CPU to being on one again: the first one of a thread began
// before the recording, or before there was the thread, and the last one may have no end. Nsight Systems does not say
// why a thread left, nor when it could run again.
func (n *nsys) readSwitches() error {
	left, seen := map[uint64]event.Event{}, map[uint64]bool{}
	var order []switched
	err := n.each("SCHED_EVENTS", []string{"start", "cpu", "isSchedIn", "globalTid"}, func(v []int64) error {
		if len(order) >= n.limits.Events {
			return nil
		}
		if v[0] >= 0 {
			order = append(order, switched{uint64(v[0]), uint16(v[1]), v[2] != 0, process(v[3]), thread(v[3])})
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortStableFunc(order, func(x, y switched) int { return cmp.Compare(x.at, y.at) })
	for _, s := range order {
		k := key(s.pid, s.tid)
		away := event.Event{
			TS:    s.at,
			PID:   s.pid,
			TID:   s.tid,
			Func:  event.Unexplained,
			Kind:  event.OffCPU,
			Flags: event.Timed,
			Ret:   int32(s.cpu),
		}
		first := !seen[k]
		seen[k] = true
		if !s.in {
			left[k] = away
			continue
		}
		e, ok := left[k]
		if !ok {
			if first {
				n.before = append(n.before, away)
			}
			continue
		}
		delete(left, k)
		e.Dur, e.Ret = s.at-e.TS, e.Ret|int32(s.cpu)<<16
		n.process(s.pid)
		n.sched = true
		if err := n.add(e); err != nil {
			return err
		}
	}
	for _, k := range slices.Sorted(maps.Keys(left)) {
		n.after = append(n.after, left[k])
	}
	return nil
}

// switched is one context switch of a thread.
type switched struct {
	at       uint64 // ns
	cpu      uint16
	in       bool
	pid, tid uint32
}

// frameKey describes which frame a row is of.
type frameKey struct{ symbol, module, kernel int64 }

// readSamples reads the stacks first: the samples refer to them.
func (n *nsys) readSamples() error {
	stacks, err := n.readStacks()
	if err != nil {
		return err
	}
	return n.each("COMPOSITE_EVENTS", []string{"id", "start", "cpu", "globalTid"}, func(v []int64) error {
		if v[1] < 0 {
			return nil
		}
		n.cpus = true
		n.process(process(v[3]))
		e := event.Event{
			TS: uint64(v[1]), PID: process(v[3]), TID: thread(v[3]), Func: uint16(event.Clock), Kind: event.Sample,
			Ret: int32(uint16(v[2])), Args: [4]uint64{stacks[v[0]], uint64(event.Whole)},
		}
		switch {
		case e.Args[0] == 0:
			e.Args[1] = uint64(event.Leaf)
		case n.broken[v[0]]:
			e.Args[1] = uint64(event.Spliced)
		}
		return n.add(e)
	})
}

// brokenStack is the root that Nsight Systems gives stacks that it could not follow to the thread's start.
const brokenStack = "[Broken backtraces]"

// chainRow is one row of SAMPLING_CALLCHAINS.
type chainRow struct {
	depth int64 // 0 is the leaf
	frame uint32
}

func (n *nsys) readStacks() (map[int64]uint64, error) {
	out := map[int64]uint64{}
	if ok, err := n.has("SAMPLING_CALLCHAINS"); err != nil || !ok {
		return out, err
	}
	frames, chains, count := map[frameKey]uint32{}, map[int64][]chainRow{}, 0
	err := n.each(
		"SAMPLING_CALLCHAINS",
		[]string{"id", "symbol", "module", "kernelMode", "stackDepth"},
		func(v []int64) error {
			if count++; count > n.limits.Events {
				return nil
			}
			if n.strings[v[1]] == brokenStack {
				n.broken[v[0]] = true
				return nil
			}
			k := frameKey{v[1], v[2], v[3]}
			f, ok := frames[k]
			if !ok {
				f = uint32(len(n.meta.Frames))
				frames[k] = f
				n.meta.Frames = append(n.meta.Frames, n.frame(k))
			}
			chains[v[0]] = append(chains[v[0]], chainRow{v[4], f})
			return nil
		},
	)
	if err != nil {
		return nil, err
	}
	nodes := map[recording.Node]int32{}
	for _, id := range slices.Sorted(keys(chains)) {
		out[id] = n.stack(chains[id], nodes)
	}
	return out, nil
}

func keys(m map[int64][]chainRow) func(yield func(int64) bool) {
	return func(yield func(int64) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func (n *nsys) frame(k frameKey) recording.Frame {
	f := recording.Frame{Kind: recording.NativeFrame, Name: n.strings[k.symbol], File: path.Base(n.strings[k.module])}
	if k.kernel != 0 {
		f.Kind, f.File = recording.KernelFrame, ""
	}
	if f.Name == "" {
		f.Name = "(no symbol)"
	}
	return f
}

// stack enters a stack into the tree and returns its number, index + 1.
func (n *nsys) stack(rows []chainRow, nodes map[recording.Node]int32) uint64 {
	slices.SortFunc(rows, func(x, y chainRow) int { return cmp.Compare(y.depth, x.depth) })
	at := int32(-1)
	for _, r := range rows {
		node := recording.Node{Parent: at, Frame: r.frame}
		i, ok := nodes[node]
		if !ok {
			i = int32(len(n.meta.Stacks))
			nodes[node] = i
			n.meta.Stacks = append(n.meta.Stacks, node)
		}
		at = i
	}
	return uint64(at + 1)
}
