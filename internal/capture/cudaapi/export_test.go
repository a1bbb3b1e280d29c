package cudaapi

import "github.com/inferscope/inferscope/internal/capture/proc"

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
