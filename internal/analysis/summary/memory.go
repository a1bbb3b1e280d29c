package summary

import (
	"cmp"
	"slices"
	"strings"
)

// memory follows what is allocated and freed. Threads free each other's memory
// and addresses are used again, so that calls are matched in the order of time at the end.
type memory struct {
	notes []memoryNote
	skips map[string]memorySkip // by kind; "" for frees
}

// memoryNote is one allocation or free.
type memoryNote struct {
	at     uint64 // ns: an allocation exists from its return, and is gone from the entry of its free
	dur    uint64
	bytes  uint64
	object object
	kind   string // "" for a free
	failed bool
}

// object is an allocation: an address, or a handle where it has none.
type object struct {
	process int32
	id      uint64
}

// note keeps a call that began in the window.
func (m *memory) note(o *op) {
	n := memoryNote{at: o.Start, dur: o.Dur, bytes: o.call.Bytes, failed: o.failed()}
	n.object = object{o.process, cmp.Or(o.call.Pointer, o.call.Handle)}
	if o.kind == allocKind {
		n.at, n.kind = o.End(), memoryKind(o.row.Name)
	}
	m.notes = append(m.notes, n)
}

// memoryKind goes by the name, as the API does.
func memoryKind(name string) string {
	switch {
	case strings.Contains(name, "Host"):
		return "host"
	case strings.Contains(name, "Managed"):
		return "managed"
	}
	return "device"
}

func (m *memory) result() Memory {
	slices.SortStableFunc(m.notes, func(x, y memoryNote) int { return cmp.Compare(x.at, y.at) })
	out := Memory{Kinds: []allocation{}}
	kinds, live := map[string]*allocation{}, map[object]*memoryNote{}
	for i := range m.notes {
		n := &m.notes[i]
		if n.kind == "" {
			out.free(n, kinds, live)
			continue
		}
		k := kinds[n.kind]
		if k == nil {
			k = &allocation{Kind: n.kind}
			kinds[n.kind] = k
		}
		k.allocate(n, live)
	}
	for _, name := range []string{"device", "managed", "host"} {
		if k := kinds[name]; k != nil {
			out.Kinds = append(out.Kinds, *k)
			out.Net += int64(k.Kept)
		}
	}
	m.estimate(&out)
	return out
}

func (k *allocation) allocate(n *memoryNote, live map[object]*memoryNote) {
	k.Count++
	k.Time += n.dur
	if n.failed {
		k.Failed++
		return
	}
	k.Bytes += n.bytes
	k.Kept += n.bytes
	if n.object.id != 0 {
		live[n.object] = n
	}
}

// free takes the allocation away that n frees. Freeing nothing is allowed, and programs do it to make CUDA start.
func (m *Memory) free(n *memoryNote, kinds map[string]*allocation, live map[object]*memoryNote) {
	m.Frees++
	m.FreeTime += n.dur
	if n.object.id == 0 || n.failed {
		return
	}
	made := live[n.object]
	if made == nil {
		m.Unmatched++
		return
	}
	delete(live, n.object)
	m.Freed += made.bytes
	kinds[made.kind].Kept -= made.bytes
}
