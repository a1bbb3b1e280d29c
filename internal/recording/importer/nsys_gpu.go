package importer

import (
	"fmt"
	"math"
	"strings"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// u32 clips a number of the database to what it can be.
func u32(n int64) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) }

func u64(n int64) uint64 { return uint64(max(n, 0)) }

// gpuColumns are those that all tables of GPU activity have, in this order: see gpuEvent.
func gpuColumns(more ...string) []string {
	return append(
		[]string{
			"start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "graphId",
			"graphNodeId",
		},
		more...)
}

// gpuEvent makes the event of a row that begins with gpuColumns.
func (n *nsys) gpuEvent(v []int64) (event.Event, bool) {
	ts, dur, ok := n.span(v[0], v[1])
	if !ok {
		return event.Event{}, false
	}
	pid := process(v[6])
	n.process(pid)
	n.stream(pid, u32(v[3]), u32(v[4]))
	n.device(pid, u32(min(v[2], 255)))
	node := u64(v[8])
	graph := uint64(u32(v[7]))
	if node != 0 && graph == 0 {
		graph = node >> 32 // older exports have the graph in the upper half of its node's id
		if graph == 0 {
			graph = 1 // it is of a graph, whichever
		}
	}
	return event.Event{
		TS: ts, Dur: dur, PID: pid, TID: u32(v[4]), Func: place(u64(v[2]), u64(v[3])), Flags: event.Timed,
		Args: [4]uint64{uint64(u32(v[5])) | graph<<32, node},
	}, true
}

func (n *nsys) device(pid, id uint32) {
	at := [2]uint32{pid, id}
	if _, ok := n.devices[at]; !ok {
		n.devices[at] = recording.Device{PID: pid, ID: id}
	}
}

func (n *nsys) readKernels() error {
	columns := gpuColumns("demangledName", "shortName", "registersPerThread", "gridX", "gridY", "gridZ",
		"blockX", "blockY", "blockZ", "staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread")
	return n.each("CUPTI_ACTIVITY_KIND_KERNEL", columns, func(v []int64) error {
		e, ok := n.gpuEvent(v)
		if !ok {
			return nil
		}
		k := v[len(gpuColumns()):]
		name := n.strings[k[0]]
		if name == "" {
			name = n.strings[k[1]]
		}
		i, err := n.kernel(
			recording.Kernel{Name: name, Registers: u32(k[2]), StaticShared: u32(k[9]), Local: u32(k[11])},
		)
		if err != nil {
			return err
		}
		e.Kind, e.Ret = event.Kernel, i
		e.Args[2] = packGrid([3]uint64{u64(k[3]), u64(k[4]), u64(k[5])})
		e.Args[3] = packBlock([3]uint64{u64(k[6]), u64(k[7]), u64(k[8])}, u64(k[10]))
		if e.Args[1] == 0 && e.TS < n.until {
			n.launched[key(e.PID, uint32(e.Args[0]))] = launch{grid: e.Args[2], block: e.Args[3], kernel: e.Ret}
		}
		return n.worked(e)
	})
}

func (n *nsys) readCopies() error {
	kind, err := n.memoryKinds("CUPTI_ACTIVITY_KIND_MEMCPY", "srcKind")
	if err != nil {
		return err
	}
	columns := gpuColumns("bytes", "copyKind", "srcKind", "dstKind", "srcDeviceId", "dstDeviceId")
	return n.each("CUPTI_ACTIVITY_KIND_MEMCPY", columns, func(v []int64) error {
		e, ok := n.gpuEvent(v)
		if !ok {
			return nil
		}
		c := v[len(gpuColumns()):]
		e.Kind = event.Copy
		e.Ret = copyWay(c[1]) | kind(c[2])<<8 | kind(c[3])<<16
		e.Args[2] = u64(c[0])
		from, to := u32(c[4]), u32(c[5])
		if c[1] != peerCopy {
			from, to = u32(v[2]), u32(v[2])
		}
		e.Args[3] = uint64(from) | uint64(to)<<32
		return n.worked(e)
	})
}

// memoryKinds returns what makes CUPTI's kind of memory (0 unknown, 1 pageable, 2 pinned, 3 device, ...) of the one in
// a column: nsys counts from 0, pageable (ENUM_CUDA_MEM_KIND of its exports). Where the table lacks the column, no kind
// is known.
func (n *nsys) memoryKinds(table, column string) (func(kind int64) int32, error) {
	has, err := n.columns(table)
	if err != nil || !has[column] {
		return func(int64) int32 { return 0 }, err
	}
	return func(kind int64) int32 {
		if kind < 0 || kind >= memoryKinds {
			return 0
		}
		return int32(kind) + 1
	}, nil
}

// memoryKinds is how many kinds of memory nsys knows that CUPTI has too: pageable to managed static.
const memoryKinds = 7

// copyWay returns CUPTI's kind of copy: nsys has the same numbers, and some of unified memory's migrations above them
// (ENUM_CUDA_MEMCPY_OPER).
func copyWay(kind int64) int32 {
	switch {
	case kind >= 0 && kind <= peerCopy:
		return int32(kind)
	case kind == unifiedToDevice:
		return 1
	case kind == unifiedToHost:
		return 2
	}
	return 0
}

// unifiedToDevice and unifiedToHost are migrations of unified memory.
const unifiedToDevice, unifiedToHost = 11, 12

// peerCopy is CUPTI_ACTIVITY_MEMCPY_KIND_PTOP.
const peerCopy = 10

func (n *nsys) readSets() error {
	kind, err := n.memoryKinds("CUPTI_ACTIVITY_KIND_MEMSET", "memKind")
	if err != nil {
		return err
	}
	return n.each("CUPTI_ACTIVITY_KIND_MEMSET", gpuColumns("bytes", "value", "memKind"), func(v []int64) error {
		e, ok := n.gpuEvent(v)
		if !ok {
			return nil
		}
		s := v[len(gpuColumns()):]
		e.Kind, e.Ret, e.Args[2], e.Args[3] = event.Set, kind(s[2]), u64(s[0]), u64(s[1])
		return n.worked(e)
	})
}

func (n *nsys) readSyncs() error {
	return n.each("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", gpuColumns("syncType", "eventId"), func(v []int64) error {
		ts, dur, ok := n.span(v[0], v[1])
		if !ok {
			return nil
		}
		s := v[len(gpuColumns()):]
		pid := process(v[6])
		n.process(pid)
		return n.worked(event.Event{
			TS: ts, Dur: dur, PID: pid, TID: u32(v[4]), Func: place(u64(v[2]), u64(v[3])), Flags: event.Timed,
			Kind: event.Sync,
			Ret:  int32(uint8(s[0])), Args: [4]uint64{uint64(u32(v[5])), 0, u64(s[1])},
		})
	})
}

// readDevices gives the devices that have rows their names; it comes after these.
func (n *nsys) readDevices() error {
	has, err := n.columns("TARGET_INFO_GPU")
	if err != nil || !has["id"] || !has["name"] {
		return err
	}
	field := func(names ...string) string {
		for _, c := range names {
			if has[c] {
				return fmt.Sprintf(`CASE WHEN typeof("%s") = 'integer' THEN "%s" ELSE 0 END`, c, c)
			}
		}
		return "0"
	}
	columns := []string{
		"id",
		"substr(CAST(name AS TEXT), 1, 256)",
		field("smCount", "numMultiprocessors"),
		field("totalMemory", "globalMemory"),
		field("memoryBandwidth"),
		field("computeMajor"),
		field("computeMinor"),
	}
	query := "SELECT " + strings.Join(columns, ", ") +
		" FROM TARGET_INFO_GPU WHERE typeof(id) = 'integer' AND name IS NOT NULL LIMIT 256"
	rows, err := n.db.QueryContext(n.ctx, query)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id, sms, memory, rate, major, minor int64
		var name string
		if err := rows.Scan(&id, &name, &sms, &memory, &rate, &major, &minor); err != nil {
			return err
		}
		for at, d := range n.devices {
			if at[1] == u32(id) {
				d.Name = name
				d.SMs = u32(sms)
				d.Memory = u64(memory)
				d.PeakRate = u64(rate)
				d.Major = u32(major)
				d.Minor = u32(minor)
				n.devices[at] = d
			}
		}
	}
	return rows.Err()
}
