package request

import (
	"time"

	"github.com/cilium/ebpf/link"

	"github.com/inferscope/inferscope/bpf"
)

// LacksHooks is lacksHooks.
var LacksHooks = lacksHooks

// SyscallLinks returns how many links the kernel has of the program at the returns of system calls.
func (s *Source) SyscallLinks() (n int, err error) {
	info, err := s.programs.coll.Programs[bpf.RequestProgRequestSyscall].Info()
	if err != nil {
		return 0, err
	}
	id, _ := info.ID()
	var it link.Iterator
	defer it.Close()
	for it.Next() {
		if i, err := it.Link.Info(); err == nil && i.Program == id {
			n++
		}
	}
	return n, it.Err()
}

// Syscalls returns how many system calls of a process were seen that are no transfers.
func (s *Source) Syscalls(pid uint32) uint64 { return s.programs.counted(pid).Syscalls }

// Transfers returns how many transfers of a process were recorded, or lost.
func (s *Source) Transfers(pid uint32) uint64 { return s.programs.counted(pid).Transfers }

// TapDetail returns what the state of the source says of engines once there is a request.
func (s *Source) TapDetail() string {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	return s.feed.taps.detail()
}

// Spent returns how long the programs at sockets have run since somebody switched on that the kernel counts it.
func (s *Source) Spent() (spent time.Duration, err error) {
	for _, name := range []string{"request_received", "request_sent", "request_state"} {
		stats, err := s.programs.coll.Programs[name].Stats()
		if err != nil {
			return 0, err
		}
		spent += stats.Runtime
	}
	return spent, nil
}

// Hooks returns the names of all hooks.
func Hooks() (names []string) {
	for _, h := range allHooks {
		names = append(names, h.name)
	}
	return names
}

// UseHooks has New try the hooks of this index only, and returns what undoes it.
func UseHooks(index int) (undo func()) {
	before := allHooks
	usedHooks = usedHooks[index : index+1]
	return func() { usedHooks = before }
}
