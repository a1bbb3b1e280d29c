package threaddump

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/profile/callers"
	"github.com/inferscope/inferscope/internal/capture/symbol"
)

// maxFiles bounds the files that are open for one dump; a stack of PyTorch goes through a dozen.
const maxFiles = 256

// space is the code that a process has mapped.
type space struct {
	process  *proc.Process
	born     time.Time      // of the process, on the wall clock
	mappings []proc.Mapping // by address
	modules  map[moduleKey]*module
	names    map[place]string
}

// moduleKey tells files apart as /proc/PID/maps does.
type moduleKey struct {
	dev, inode uint64
	path       string
}

// module is one file.
type module struct {
	proc.Mapping
	file *os.File
	cfi  *callers.File // nil: err says why
	err  error
}

// place is an address in a file, or in memory that belongs to none (module nil).
type place struct {
	module *module
	addr   uint64
}

func newSpace(p *proc.Process) (*space, error) {
	mappings, err := proc.Mappings(p)
	if err != nil {
		return nil, fmt.Errorf("list the code of pid %d: %w", p.PID, err)
	}
	return &space{
		process:  p,
		born:     time.Now().Add(-sinceBirth(p)),
		mappings: mappings,
		modules:  map[moduleKey]*module{},
		names:    map[place]string{},
	}, nil
}

// sinceBirth returns how long ago p was born.
func sinceBirth(p *proc.Process) time.Duration {
	return time.Duration(clock.Monotonic() - p.Born)
}

func (s *space) close() {
	for _, m := range s.modules {
		if m.file != nil {
			_ = m.file.Close() // it was only read
		}
	}
}

// mapping returns the mapping at an address.
func (s *space) mapping(addr uint64) (proc.Mapping, bool) {
	i, found := slices.BinarySearchFunc(s.mappings, addr,
		func(m proc.Mapping, a uint64) int { return cmp.Compare(m.Start, a) })
	if !found {
		i--
	}
	if i < 0 || addr >= s.mappings[i].End {
		return proc.Mapping{}, false
	}
	return s.mappings[i], true
}

var errManyFiles = errors.New("too many files are on its stacks")

// module returns the one module of a mapping.
func (s *space) module(m proc.Mapping) *module {
	key := moduleKey{m.Dev, m.Inode, m.Path}
	if known := s.modules[key]; known != nil {
		return known
	}
	mod := &module{Mapping: m}
	s.modules[key] = mod
	if len(s.modules) > maxFiles {
		mod.err = errManyFiles
		return mod
	}
	if mod.file, mod.err = proc.Open(s.process, m); mod.err != nil {
		return mod
	}
	f, err := callers.Open(mod.file)
	if mod.err = err; err == nil || errors.Is(err, callers.ErrNoTable) {
		mod.cfi = f
	}
	return mod
}

// place finds what an address of the process is.
func (s *space) place(addr uint64) place {
	m, ok := s.mapping(addr)
	if !ok {
		return place{addr: addr}
	}
	mod := s.module(m)
	if mod.cfi == nil {
		return place{module: mod, addr: addr - m.Start + m.Offset}
	}
	if vaddr, ok := mod.cfi.Address(addr - m.Start + m.Offset); ok {
		return place{module: mod, addr: vaddr}
	}
	return place{module: mod, addr: addr - m.Start + m.Offset}
}

// name names the function at a place.
func (s *space) name(p place, symbols *symbol.Table) string {
	if name, ok := s.names[p]; ok {
		return name
	}
	name := s.look(p, symbols)
	s.names[p] = name
	return name
}

func (s *space) look(p place, symbols *symbol.Table) string {
	if p.module == nil {
		return symbols.ResolveMemory(s.memory(), p.addr).String()
	}
	return symbols.Resolve(s.file(p.module), p.addr).String()
}

// file reports how to read the symbols of a module.
func (s *space) file(m *module) symbol.Module {
	return symbol.Module{
		Path:   m.Path,
		Open:   func() (symbol.File, error) { return opened(proc.Open(s.process, m.Mapping)) },
		Beside: s.beside,
	}
}

// memory reports how to look into what is in no file.
func (s *space) memory() symbol.Process {
	p := s.process
	return symbol.Process{
		Key: symbol.ProcessKey{PID: p.PID, StartTime: p.StartTime}, NSPID: p.NSPID, UID: p.UID, Born: s.born,
		Maps: func() (io.ReadCloser, error) { return proc.OpenMaps(s.process) }, Beside: s.beside,
	}
}

func (s *space) beside(path string) (symbol.File, error) {
	return opened(proc.Open(s.process, proc.Mapping{Path: path}))
}

// opened keeps a nil file from becoming an interface that is not nil.
func opened(f *os.File, err error) (symbol.File, error) {
	if err != nil {
		return nil, err
	}
	return f, nil
}
