package symbol

import (
	"fmt"
	"io"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/inferscope/inferscope/internal/format/symname"
)

// refreshAfter is how often what a process has in memory is looked at again.
const refreshAfter = time.Second

// idleAfter is when what a process has in memory is forgotten: most likely the process has ended.
const idleAfter = 5 * time.Minute

// What memory is called that has no better name.
const (
	vdsoName     = "[vdso]"
	generated    = "[generated code]"
	notMapped    = "[not mapped]"
	sharedMemory = "[shared memory]"
)

// ProcessKey tells processes apart for as long as the machine runs.
type ProcessKey struct {
	PID       uint32
	StartTime uint64 // clock ticks since boot
}

// Process is one process, whose memory holds code that is in no file.
type Process struct {
	Key   ProcessKey
	NSPID uint32 // in its own pid namespace, which names its perf map; 0: as Key
	UID   uint32 // owner; a perf map of anybody else but root is not believed
	// Born is when the process began; a perf map last written before is of another
	// process that had its number, as in a container that was started again. The zero
	// time: not known.
	Born time.Time
	// Maps opens /proc/PID/maps of this very process.
	Maps func() (io.ReadCloser, error)
	// Beside opens a file by its path as the process sees it, as that of Module does.
	// nil: the perf map is not looked for.
	Beside func(path string) (File, error)
}

// space is the code in a process's memory that is in no file. It is kept in the table
// like the index of a file.
type space struct {
	index
	used time.Time // in the table's lock

	mu      sync.Mutex
	read    time.Time
	regions []region // by address
	perf    perfMap
}

// ResolveMemory names an address of a process that is in no file: in the vdso, or in
// code that the process generated, by its perf map (/tmp/perf-PID.map). Where nothing
// names it, Module says what memory it is in: [generated code], [anon:name],
// [memfd:name], [not mapped].
//
// What the process has mapped and written is looked at once a second at most, so code
// younger than that may have no name yet.
func (t *Table) ResolveMemory(p Process, addr uint64) Symbol {
	s := t.space(p.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := t.now(); now.Sub(s.read) >= refreshAfter {
		s.read = now
		t.refresh(s, p)
	}
	r, ok := regionAt(s.regions, addr)
	switch {
	case !ok:
		return Symbol{Offset: addr, Module: notMapped}
	case r.name == vdsoName:
		return t.resolveVDSO(addr - r.start)
	}
	if e, ok := s.perf.at(addr); ok {
		if name := t.perfName(s, p, e); name != "" {
			return Symbol{Name: name, Offset: addr - e.addr, Module: r.name}
		}
	}
	return Symbol{Offset: addr, Module: r.name}
}

// space returns what is kept of a process.
func (t *Table) space(key ProcessKey) *space {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.files[key]; s != nil {
		t.recent.MoveToFront(s.index.element)
		s.space.used = t.now()
		return s.space
	}
	t.expire()
	s := &space{used: t.now()}
	done := make(chan struct{})
	close(done)
	t.files[key] = &slot{done: done, index: &s.index, space: s}
	t.insert(key, &s.index)
	return s
}

// expire forgets processes in whose memory nothing was named for a while. The caller holds the lock.
func (t *Table) expire() {
	for e := t.recent.Back(); e != nil; {
		x := e.Value.(*index)
		e = e.Prev()
		slot := t.files[x.keys[0]]
		switch {
		case slot == nil || slot.space == nil: // a file
		case t.now().Sub(slot.space.used) < idleAfter:
			return
		default:
			t.drop(x)
		}
	}
}

// refresh looks at a process's memory and perf map. What cannot be read, because the
// process has gone, stays as it was.
func (t *Table) refresh(s *space, p Process) {
	if p.Maps != nil {
		if f, err := p.Maps(); err == nil {
			if regions, err := readRegions(f); err == nil {
				s.regions = regions
			}
			f.Close()
		}
	}
	if p.Beside != nil {
		limit := int(t.budget / 4 / perfEntryBytes)
		if f, err := p.Beside(perfPath(p)); err == nil {
			s.perf.refresh(f, p, limit)
			f.Close()
		}
	}
	t.weigh(s)
}

func perfPath(p Process) string {
	pid := p.NSPID
	if pid == 0 {
		pid = p.Key.PID
	}
	return fmt.Sprintf("/tmp/perf-%d.map", pid)
}

// weigh counts what a space takes now.
func (t *Table) weigh(s *space) {
	now := indexBytes + int64(cap(s.perf.entries))*perfEntryBytes
	for _, r := range s.regions {
		now += 48 + int64(len(r.name))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.element == nil {
		return // dropped meanwhile
	}
	t.bytes += now - s.fixed
	s.fixed = now
	t.shrink(&s.index)
}

// perfName returns the name of an entry of a perf map.
func (t *Table) perfName(s *space, p Process, e perfEntry) string {
	key := nameKey{table: -1 - s.perf.resets, at: uint64(e.line)}
	if name, ok := t.known(&s.index, key); ok {
		return name
	}
	if p.Beside == nil {
		return ""
	}
	f, err := p.Beside(perfPath(p))
	if err != nil {
		t.count(&t.stats.Failures)
		return ""
	}
	defer f.Close()
	raw, err := s.perf.name(f, e)
	if err != nil {
		t.count(&t.stats.Failures)
		return ""
	}
	name := symname.Demangle(raw, t.full)
	t.keep(&s.index, key, name)
	return name
}

// region is executable memory that is of no file.
type region struct {
	start, end uint64
	name       string // in brackets
}

func regionAt(all []region, addr uint64) (region, bool) {
	i := sort.Search(len(all), func(i int) bool { return all[i].end > addr })
	if i == len(all) || addr < all[i].start {
		return region{}, false
	}
	return all[i], true
}

// regionName reports what memory is that maps shows under a name.
func regionName(path string) string {
	path = strings.TrimSuffix(path, " (deleted)")
	switch {
	case path == "":
		return generated
	case strings.HasPrefix(path, "["):
		return symname.Clean(path)
	case strings.HasPrefix(path, "/memfd:"):
		return symname.Clean("[" + path[1:] + "]")
	case strings.HasPrefix(path, "/dev/zero"), strings.HasPrefix(path, "/SYSV"), strings.HasPrefix(path, "/dev/shm/"):
		return sharedMemory
	}
	return symname.Clean("[" + path + "]")
}
