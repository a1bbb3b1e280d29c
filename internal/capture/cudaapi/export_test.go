package cudaapi

import (
	"os"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
)

// AddLaunches adds a library with a launch function at this offset to those of p, and returns how many there are.
func (s *Source) AddLaunches(p proc.ID, file *os.File, offset uint64) (libraries int, err error) {
	s.mu.Lock()
	l := s.procs[p].launches
	s.mu.Unlock()
	err = l.add(&library{file: file}, []uprobe.Site{{Offset: offset}})
	l.work.Lock()
	defer l.work.Unlock()
	return len(l.libraries), err
}

// LaunchProbes returns what puts the probes on p's launches on and off at once.
func (s *Source) LaunchProbes(p proc.ID) (on, off func(), functions int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.procs[p].launches
	for _, lib := range l.libraries {
		functions += len(lib.sites)
	}
	return l.attachAll, l.detachAll, functions
}
