package inject

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/inferscope/inferscope/internal/capture/procfile"
)

// roomNeeded is what a visit may use of the thread's stack: the frame (2 to 12 kB, by
// the processor), glibc's dlopen, and what saves vector registers in it. Together
// 6 kB with AVX and glibc 2.36 (TestStackUse); with AMX each such save has 11 kB.
const roomNeeded = 64 << 10

// area is the stack of a thread: what lies in [low, high) is its own.
type area struct {
	low, high uint64
	grows     bool // the first thread's, which the kernel makes longer on demand
}

// room reports whether a call can be made below sp.
func (a area) room(sp uint64) bool {
	return sp > a.low && sp < a.high && sp-a.low >= roomNeeded
}

// vma is one line of /proc/PID/maps.
type vma struct {
	start, end uint64
	perms      string
	name       string
}

// Bounds of /proc/PID/maps, bytes.
const (
	maxMaps     = 64 << 20
	maxMapsLine = 64 << 10
)

// readVMAs returns the mappings for which keep says so; it sees each with the one before it.
func readVMAs(pid int, keep func(before, v vma) bool) ([]vma, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseVMAs(io.LimitReader(f, maxMaps), keep)
}

func parseVMAs(text io.Reader, keep func(before, v vma) bool) ([]vma, error) {
	var found []vma
	var before vma
	lines := bufio.NewScanner(text)
	lines.Buffer(make([]byte, maxMapsLine), maxMapsLine)
	for lines.Scan() {
		m, ok := procfile.ParseMapsLine(lines.Bytes())
		if !ok {
			continue
		}
		v := vma{start: m.Start, end: m.End, perms: string(m.Perms), name: string(m.Name)}
		if keep(before, v) {
			found = append(found, v)
		}
		before = v
	}
	return found, lines.Err()
}

var errNoStack = errors.New("its stack is none that libc made, so where it ends is not known")

// stackOf finds the stack that a thread with this stack pointer and thread pointer
// runs on. Only two kinds are taken: the first thread's, which the kernel marks, and
// one that libc made, which has the thread's control block at its high end and no
// access below its low end. A fiber's stack, cut out of a heap, is neither, and what lies
// below it would be overwritten.
func stackOf(pid, tid int, sp, tls uint64) (area, error) {
	var guard vma
	found, err := readVMAs(pid, func(before, v vma) bool {
		if sp < v.start || sp >= v.end {
			return false
		}
		guard = before
		return true
	})
	if err != nil {
		return area{}, fmt.Errorf("read its mappings: %w", err)
	}
	if len(found) == 0 {
		return area{}, errNoStack
	}
	v := found[0]
	switch {
	case !strings.HasPrefix(v.perms, "rw-p"):
		return area{}, errNoStack
	case v.name == "[stack]":
		return area{low: lowest(pid, v, guard), high: v.end, grows: true}, nil
	case tid == pid || tls <= sp || tls >= v.end:
		return area{}, errNoStack
	case guard.end == v.start && strings.HasPrefix(guard.perms, "---"):
		return area{low: v.start, high: tls}, nil
	}
	return guarded(pid, v, sp, tls)
}

// lowest returns how far the first thread's stack may grow: to its limit, and not
// nearer to the mapping below it than the kernel's gap of 256 pages (and as much to spare).
func lowest(pid int, v, below vma) uint64 {
	const gap = 2 << 20
	low := v.start
	if limit := stackLimit(pid); limit < v.end && v.end-limit < low {
		low = v.end - limit
	}
	return min(v.start, max(low, below.end+gap))
}

// stackLimit reads the soft RLIMIT_STACK, bytes; unlimited is taken for 8 MiB.
func stackLimit(pid int) uint64 {
	const usual = 8 << 20
	text, err := procfile.Head(fmt.Sprintf("/proc/%d/limits", pid), shortText)
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), "Max stack size")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	n, err := strconv.ParseUint(fields[0], 10, 64)
	if err != nil {
		return usual
	}
	return n
}

// pmGuard marks a page that MADV_GUARD_INSTALL made inaccessible, in
// /proc/PID/pagemap (Linux 6.15): so glibc 2.42 guards its stacks.
const pmGuard = 1 << 58

// guarded finds the nearest guard page below sp in v, at most 64 MiB away.
func guarded(pid int, v vma, sp, tls uint64) (area, error) {
	const furthest = 64 << 20
	page := uint64(os.Getpagesize())
	low := v.start
	if sp-low > furthest {
		low = (sp - furthest) &^ (page - 1)
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		return area{}, errNoStack
	}
	defer f.Close()
	entries := make([]byte, (sp-low)/page*8)
	if _, err := f.ReadAt(entries, int64(low/page*8)); err != nil {
		return area{}, errNoStack
	}
	for i := len(entries) - 8; i >= 0; i -= 8 {
		if binary.LittleEndian.Uint64(entries[i:])&pmGuard != 0 {
			return area{low: low + uint64(i/8+1)*page, high: tls}, nil
		}
	}
	return area{}, errNoStack
}
