package sampler

import (
	"cmp"
	"errors"
	"os"
	"path"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/inferscope/inferscope/internal/clock"
	"github.com/inferscope/inferscope/internal/symbol"
	"github.com/inferscope/inferscope/internal/target"
)

// maxModules bounds how many files are known; a PyTorch process maps 300.
const maxModules = 8192

// module is one file with native code. There is one for each file, so that frames
// can be compared by it.
type module struct {
	fileKey

	once     sync.Once
	segments symbol.Segments // file offset -> address; none where the file cannot be read

	known atomic.Pointer[identified]
}

// identified is which file a module was, and when.
type identified struct {
	key symbol.Key
	at  uint64 // ns, CLOCK_MONOTONIC
}

// identityLasts is how long a module is taken for the file that it was, in ns: opening it
// for every new frame was a quarter of what samples cost the daemon. A file that is written
// over while it is mapped has the names of the old one that long, at worst.
const identityLasts = 10_000_000_000

// fileKey tells files apart as /proc/PID/maps does.
type fileKey struct {
	dev, inode uint64
	path       string // as the process sees it
}

func (m *module) base() string { return path.Base(m.path) }

// modules are the files of all followed processes.
type modules struct {
	mu     sync.Mutex
	byKey  map[fileKey]*module
	spaces map[uint32]*space
}

// space is what a process has mapped. It is read when it is first asked for, and
// again after something was mapped.
type space struct {
	process  *target.Process
	stale    bool
	mappings []target.Mapping // by address
}

func newModules() *modules {
	return &modules{byKey: map[fileKey]*module{}, spaces: map[uint32]*space{}}
}

// follow notes that p is there and may have mapped something.
func (m *modules) follow(p *target.Process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.spaces[p.PID]
	if s == nil || s.process.ID() != p.ID() {
		s = &space{}
		m.spaces[p.PID] = s
	}
	s.process, s.stale = p, true
}

func (m *modules) forget(p *target.Process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.spaces[p.PID]; s != nil && s.process.ID() == p.ID() {
		delete(m.spaces, p.PID)
	}
}

// mappings returns what pid has mapped. The caller holds the lock. What cannot be
// read is as it was before.
func (m *modules) mappings(pid uint32) []target.Mapping {
	s := m.spaces[pid]
	if s == nil {
		return nil
	}
	if s.stale {
		s.stale = false
		if now, err := target.Mappings(s.process); err == nil {
			s.mappings = now
		}
	}
	return s.mappings
}

// at returns the mapping of pid at an address.
func (m *modules) at(pid uint32, addr uint64) (target.Mapping, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.mappings(pid)
	i, found := slices.BinarySearchFunc(all, addr, func(t target.Mapping, a uint64) int { return cmp.Compare(t.Start, a) })
	if !found {
		i--
	}
	if i < 0 || addr >= all[i].End {
		return target.Mapping{}, false
	}
	return all[i], true
}

// module returns the one module of a file, nil where there are too many.
func (m *modules) module(key fileKey) *module {
	m.mu.Lock()
	defer m.mu.Unlock()
	found := m.byKey[key]
	if found == nil && len(m.byKey) < maxModules {
		found = &module{fileKey: key}
		m.byKey[key] = found
	}
	return found
}

// named returns the module of the file that pid has mapped under an inode and a path;
// the library prints devices in its own way.
func (m *modules) named(pid uint32, inode uint64, name string) *module {
	key := fileKey{inode: inode, path: name}
	m.mu.Lock()
	for _, t := range m.mappings(pid) {
		if t.Inode == inode && t.Path == name {
			key.dev = t.Dev
			break
		}
	}
	m.mu.Unlock()
	return m.module(key)
}

var errNotMapped = errors.New("no process that is followed maps it any more")

// open opens the file of a module through a process that has it mapped.
func (m *modules) open(mod *module) (*os.File, error) {
	process, mapping, ok := m.holder(mod)
	if !ok {
		return nil, errNotMapped
	}
	return target.Open(process, mapping)
}

// identity returns the key of a module's file for its symbols; the zero Key, which is
// always right, where it cannot be had.
func (m *modules) identity(mod *module) symbol.Key {
	was := mod.known.Load()
	now := clock.Monotonic()
	if was != nil && now-was.at < identityLasts {
		return was.key
	}
	f, err := m.open(mod)
	if err != nil {
		if was != nil {
			return was.key // nobody has it mapped any more; what was read of it is still good
		}
		return symbol.Key{}
	}
	defer f.Close()
	key, err := symbol.Identify(f)
	if err != nil {
		return symbol.Key{}
	}
	mod.known.Store(&identified{key, now})
	return key
}

func (m *modules) holder(mod *module) (*target.Process, target.Mapping, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for pid, s := range m.spaces {
		for _, t := range m.mappings(pid) {
			if t.Dev == mod.dev && t.Inode == mod.inode && t.Path == mod.path {
				return s.process, t, true
			}
		}
	}
	return nil, target.Mapping{}, false
}

// leaf makes the frame of an address in pid.
func (m *modules) leaf(pid uint32, addr uint64) frame {
	elsewhere := frame{kind: nativeFrame, addr: addr, pid: pid}
	t, ok := m.at(pid, addr)
	if !ok {
		return elsewhere
	}
	mod := m.module(fileKey{t.Dev, t.Inode, t.Path})
	if mod == nil {
		return elsewhere
	}
	vaddr, ok := m.vaddr(mod, addr-t.Start+t.Offset)
	if !ok {
		return elsewhere
	}
	return frame{kind: nativeFrame, module: mod, addr: vaddr}
}

// vaddr translates an offset in a file to the numbering of its program headers.
func (m *modules) vaddr(mod *module, offset uint64) (uint64, bool) {
	mod.once.Do(func() {
		f, err := m.open(mod)
		if err != nil {
			return
		}
		defer f.Close()
		mod.segments, _ = symbol.ReadSegments(f) // the frame is elsewhere then
	})
	return mod.segments.Address(offset)
}
