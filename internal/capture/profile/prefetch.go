package profile

import (
	"encoding/binary"
	"fmt"
	"os"
	"sort"
	"strconv"

	"github.com/inferscope/inferscope/internal/capture/procfile"
	"go.opentelemetry.io/ebpf-profiler/process"
)

// maxPrefetchBytes is how much of a stack is looked through, in bytes. The frames of a PyTorch
// from main to a kernel of libtorch_cpu take 30 kB; what lies beyond is of its start.
const maxPrefetchBytes = 64 << 10

// prefetch orders the files that the return addresses on the stack of a process's first thread point into. Without it
// each file is found by a stack that ends there, one after the other, and a large library is read last. Stale return
// addresses only cost the time to read a file more.
func (l *loader) prefetch(p process.Process, c *change) {
	end, err := stackStart(int(p.PID()))
	if err != nil {
		return
	}
	b := make([]byte, min(maxPrefetchBytes, end))
	if _, err := p.GetRemoteMemory().ReadAt(b, int64(end)-int64(len(b))); err != nil {
		return // it has a smaller stack, or is gone
	}
	order := make([]int, len(c.come))
	for i := range order {
		order[i] = i
	}
	sort.Slice(order, func(i, j int) bool { return c.come[order[i]].Vaddr < c.come[order[j]].Vaddr })
	l.mu.Lock()
	defer l.mu.Unlock()
	for ; len(b) >= 8; b = b[8:] {
		addr := binary.NativeEndian.Uint64(b)
		k := sort.Search(len(order), func(i int) bool { return c.come[order[i]].Vaddr > addr }) - 1
		if k < 0 {
			continue
		}
		if m := &c.come[order[k]]; addr-m.Vaddr < m.Length && c.files[order[k]] != nil {
			c.files[order[k]].wanted = max(1, c.files[order[k]].wanted)
		}
	}
}

// stackStart returns where the stack of a process's first thread began when the program was
// started: startstack of /proc/PID/stat, proc_pid_stat(5).
func stackStart(pid int) (uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	const startstack = 28 - 3 // counted from the state, which follows the name in brackets
	fields := procfile.StatFields(text)
	if len(fields) <= startstack {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	return strconv.ParseUint(string(fields[startstack]), 10, 63)
}
