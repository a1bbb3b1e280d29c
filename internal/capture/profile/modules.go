package profile

import (
	"cmp"
	"errors"
	"os"
	"path"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/symbol"
)

// maxModules bounds how many files are known for each payer; a PyTorch process maps 300.
const maxModules = 4096

// sweepEvery is how often it is looked, for a payer who has as many, which files nobody has mapped any more, in ns:
// that goes through all that is mapped.
const sweepEvery = 1_000_000_000

// module is one file with native code. There is one for each file, so that frames
// can be compared by it.
type module struct {
	fileKey
	payer proc.Payer // who it is charged to: the first who had it mapped

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
	now func() uint64 // ns

	mu       sync.Mutex
	byKey    map[fileKey]*module
	spaces   map[uint32]*space
	accounts map[proc.Payer]*account
}

// account is what a payer has of modules.
type account struct {
	modules, spaces int
	swept           uint64 // ns
}

// space is what a process has mapped. It is read when it is first asked for, and
// again after something was mapped.
type space struct {
	process  *proc.Process
	stale    bool
	mappings []proc.Mapping // by address
	unnamed  uint64         // times that a file of it found no room
}

func newModules() *modules {
	return &modules{
		now: clock.Monotonic, byKey: map[fileKey]*module{}, spaces: map[uint32]*space{},
		accounts: map[proc.Payer]*account{},
	}
}

// follow notes that p is there and may have mapped something.
func (m *modules) follow(p *proc.Process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.spaces[p.PID]
	if s != nil && s.process.ID() != p.ID() {
		m.drop(s)
		s = nil
	}
	if s == nil {
		s = &space{process: p}
		m.spaces[p.PID] = s
		m.account(p.Payer).spaces++
	}
	s.process, s.stale = p, true
}

func (m *modules) forget(p *proc.Process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.spaces[p.PID]; s != nil && s.process.ID() == p.ID() {
		m.drop(s)
	}
}

// drop forgets a space, and with a payer's last one the files that nobody has mapped any more. The caller holds the
// lock.
func (m *modules) drop(s *space) {
	who := s.process.Payer
	delete(m.spaces, s.process.PID)
	a := m.account(who)
	if a.spaces--; a.spaces == 0 {
		m.sweep()
		m.close(who)
	}
}

// account returns what a payer has. The caller holds the lock.
func (m *modules) account(who proc.Payer) *account {
	a := m.accounts[who]
	if a == nil {
		a = &account{}
		m.accounts[who] = a
	}
	return a
}

// close forgets an account that is empty. The caller holds the lock.
func (m *modules) close(who proc.Payer) {
	if a := m.accounts[who]; a != nil && a.modules == 0 && a.spaces == 0 {
		delete(m.accounts, who)
	}
}

// sweep forgets the files that no process has mapped any more. Frames in them stay what they are. The caller holds
// the lock.
func (m *modules) sweep() {
	mapped := map[*module]bool{}
	for _, s := range m.spaces {
		for _, t := range s.mappings {
			if mod := m.byKey[fileKey{t.Dev, t.Inode, t.Path}]; mod != nil {
				mapped[mod] = true
			}
		}
	}
	for key, mod := range m.byKey {
		if !mapped[mod] {
			delete(m.byKey, key)
			m.account(mod.payer).modules--
			m.close(mod.payer)
		}
	}
}

// mappings returns what pid has mapped. The caller holds the lock. What cannot be
// read is as it was before.
func (m *modules) mappings(pid uint32) []proc.Mapping {
	s := m.spaces[pid]
	if s == nil {
		return nil
	}
	if s.stale {
		s.stale = false
		if now, err := proc.Mappings(s.process); err == nil {
			s.mappings = now
		}
	}
	return s.mappings
}

// at returns the mapping of pid at an address.
func (m *modules) at(pid uint32, addr uint64) (proc.Mapping, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.mappings(pid)
	i, found := slices.BinarySearchFunc(all, addr,
		func(t proc.Mapping, a uint64) int { return cmp.Compare(t.Start, a) })
	if !found {
		i--
	}
	if i < 0 || addr >= all[i].End {
		return proc.Mapping{}, false
	}
	return all[i], true
}

// module returns the one module of a file that pid has mapped, nil where who pays for pid has too many.
func (m *modules) module(pid uint32, key fileKey) *module {
	m.mu.Lock()
	defer m.mu.Unlock()
	if found := m.byKey[key]; found != nil {
		return found
	}
	s, who := m.spaces[pid], proc.Payer{}
	if s != nil {
		who = s.process.Payer
	}
	if a, now := m.account(who), m.now(); a.modules >= maxModules && now-a.swept >= sweepEvery {
		a.swept = now
		m.sweep()
	}
	a := m.account(who)
	if a.modules >= maxModules {
		if s != nil {
			s.unnamed++
		}
		return nil
	}
	a.modules++
	made := &module{fileKey: key, payer: who}
	m.byKey[key] = made
	return made
}

// unnamed returns for each process how often a file of it found no room.
func (m *modules) unnamed() map[uint32]uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[uint32]uint64{}
	for pid, s := range m.spaces {
		if s.unnamed > 0 {
			out[pid] = s.unnamed
		}
	}
	return out
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
	return m.module(pid, key)
}

var errNotMapped = errors.New("no process that is followed maps it any more")

// open opens the file of a module through a process that has it mapped.
func (m *modules) open(mod *module) (*os.File, error) {
	process, mapping, ok := m.holder(mod)
	if !ok {
		return nil, errNotMapped
	}
	return proc.Open(process, mapping)
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

func (m *modules) holder(mod *module) (*proc.Process, proc.Mapping, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for pid, s := range m.spaces {
		for _, t := range m.mappings(pid) {
			if t.Dev == mod.dev && t.Inode == mod.inode && t.Path == mod.path {
				return s.process, t, true
			}
		}
	}
	return nil, proc.Mapping{}, false
}

// leaf makes the frame of an address in pid.
func (m *modules) leaf(pid uint32, addr uint64) frame {
	elsewhere := frame{kind: nativeFrame, addr: addr, pid: pid}
	t, ok := m.at(pid, addr)
	if !ok {
		return elsewhere
	}
	mod := m.module(pid, fileKey{t.Dev, t.Inode, t.Path})
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
