package profile

import (
	"fmt"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/proc"
)

// mapping lets a process have files mapped.
func (m *modules) mapping(p *proc.Process, from, to int) {
	m.follow(p)
	s := m.spaces[p.PID]
	s.stale, s.mappings = false, nil
	for i := from; i < to; i++ {
		s.mappings = append(s.mappings, proc.Mapping{
			Start: uint64(i) << 12, End: uint64(i+1) << 12, Inode: uint64(i), Path: fmt.Sprintf("/pid%d/%d", p.PID, i),
		})
	}
}

// meet returns how many files of a process have a module.
func (m *modules) meet(p *proc.Process) (n int) {
	for _, t := range m.spaces[p.PID].mappings {
		if m.module(p.PID, fileKey{t.Dev, t.Inode, t.Path}) != nil {
			n++
		}
	}
	return n
}

func newTestModules() (m *modules, now *uint64) {
	now = new(uint64)
	*now = 1 << 40
	m = newModules()
	m.now = func() uint64 { return *now }
	return m, now
}

// TestNamesOfAnotherUser: a program that maps files without end loses names of its own, and nobody else any.
func TestNamesOfAnotherUser(t *testing.T) {
	m, now := newTestModules()
	hostile := &proc.Process{PID: 10, Payer: proc.Payer{UID: 7}}
	honest := &proc.Process{PID: 20, Payer: proc.Payer{UID: 8}}
	m.mapping(hostile, 0, 3*maxModules)
	if n := m.meet(hostile); n != maxModules {
		t.Errorf("%d files of the hostile process are known, want %d", n, maxModules)
	}
	m.mapping(honest, 0, 300)
	if n := m.meet(honest); n != 300 {
		t.Errorf("%d of 300 files of another user are known", n)
	}
	if lost := m.unnamed(); len(lost) != 1 || lost[10] != 2*maxModules {
		t.Errorf("losses are %v, want %d of pid 10", lost, 2*maxModules)
	}
	for range 3 { // other files, each time: those of before are not mapped any more
		*now += sweepEvery
		m.mapping(hostile, 4*maxModules, 4*maxModules+100)
		if n := m.meet(hostile); n != 100 {
			t.Errorf("%d of 100 files are known that came in place of others", n)
		}
	}
	if n := m.meet(honest); n != 300 {
		t.Errorf("%d of 300 files of another user are known afterwards", n)
	}
}

// TestNamesAfterOthersEnd: names do not stop for good, whoever has had them.
func TestNamesAfterOthersEnd(t *testing.T) {
	m, _ := newTestModules()
	for pid := uint32(1); pid <= 20; pid++ {
		p := &proc.Process{PID: pid, Payer: proc.Payer{Root: pid}}
		m.mapping(p, 0, 1000)
		if n := m.meet(p); n != 1000 {
			t.Fatalf("%d of 1,000 files of program %d are known", n, pid)
		}
		m.forget(p)
	}
	if len(m.byKey) != 0 || len(m.accounts) != 0 || len(m.spaces) != 0 {
		t.Errorf("%d files, %d accounts and %d processes are left", len(m.byKey), len(m.accounts), len(m.spaces))
	}
}

// TestSharedFileStays: a file stays as long as anybody has it mapped, whoever it is charged to.
func TestSharedFileStays(t *testing.T) {
	m, _ := newTestModules()
	first, second := &proc.Process{PID: 1, Payer: proc.Payer{UID: 7}}, &proc.Process{PID: 2, Payer: proc.Payer{UID: 8}}
	libc := proc.Mapping{End: 1, Inode: 5, Path: "/libc"}
	for _, p := range []*proc.Process{first, second} {
		m.mapping(p, 0, 0)
		m.spaces[p.PID].mappings = []proc.Mapping{libc}
		m.meet(p)
	}
	known := m.byKey[fileKey{inode: 5, path: "/libc"}]
	m.forget(first)
	if known == nil || m.module(2, known.fileKey) != known {
		t.Error("a file that is mapped is known no more")
	}
	m.forget(second)
	if len(m.byKey) != 0 || len(m.accounts) != 0 {
		t.Errorf("%d files and %d accounts are left", len(m.byKey), len(m.accounts))
	}
}
