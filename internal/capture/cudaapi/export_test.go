package cudaapi

import (
	"os"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/cuda"
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

// ProbeAgain probes the first library of p a second time, with these sites in place of those of its launches or, where
// plain, of its other calls. It returns whether a change of the level that waits meanwhile finds the file open, and how
// many probes are on after one.
func (s *Source) ProbeAgain(p *proc.Process, file *os.File, sites []uprobe.Site, plain bool) (
	open bool, on int, err error,
) {
	s.mu.Lock()
	first := s.procs[p.ID()].libraries[0]
	l := &library{contents: first.contents, id: fileID{inode: 1}, row: first.row, file: file}
	s.mu.Unlock()
	options, _ := s.options(p, l)
	made := *l.plans[options]
	if made.launching = sites; plain {
		made.launching, made.sites.plain = nil, sites
	}
	l.plans = map[cuda.Options]*plan{options: &made}
	var attached atomic.Bool
	var changes errgroup.Group
	for range 4 { // of which some wait when the attach ends
		changes.Go(func() error {
			for !attached.Load() {
				s.changing.Lock()
				s.mu.Lock()
				open = open || l.file != nil && slices.Contains(s.procs[p.ID()].libraries, l)
				s.mu.Unlock()
				s.changing.Unlock()
			}
			return nil
		})
	}
	err = s.attach(p, l)
	attached.Store(true)
	_ = changes.Wait()
	if e := s.SetLevel(s.Level()); e != nil {
		err = e
	}
	for _, at := range []*uprobe.Attachment{l.waits, l.attachment, l.frequent} {
		if at != nil {
			on += len(at.LinkIDs())
		}
	}
	return open, on, err
}
