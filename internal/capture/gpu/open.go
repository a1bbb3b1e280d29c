package gpu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/procfile"
)

// ringName is what the agent calls its memfd.
const ringName = "inferscope-ring"

// Bounds of a ring's size, in slots: the agent is asked for what the daemon wants, an
// agent that was loaded at start chooses by itself.
const (
	minSlots = 1 << 8
	maxSlots = 1 << 20
)

var errNoRing = errors.New("no agent's ring")

// openRing opens a ring and maps it; package procfile looks at what it is first. want is
// the number of slots, 0 for any that is within bounds.
func openRing(p *proc.Process, m procfile.Memfd, want uint64) (*ring, error) {
	file, size, err := m.Open(p.Alive, procfile.FixedSize())
	if err != nil {
		return nil, err
	}
	defer file.Close()
	slots, err := slotsOf(size)
	if err != nil {
		return nil, err
	}
	if want != 0 && slots != want {
		return nil, fmt.Errorf("%s has room for %d slots instead of %d", file.Name(), slots, want)
	}
	r, err := mapRing(int(file.Fd()), slots)
	if err != nil {
		return nil, fmt.Errorf("mapping %s: %w", file.Name(), err)
	}
	if err := r.check(p.NSPID); err != nil {
		return nil, errors.Join(fmt.Errorf("the ring %s: %w", file.Name(), err), r.close())
	}
	return r, nil
}

// mapRing maps a ring of so many slots behind a page of our own, for a liveness.
func mapRing(fd int, slots uint64) (*ring, error) {
	page, size := uintptr(os.Getpagesize()), uintptr(ringData+slots*slotBytes)
	base, err := unix.MmapPtr(
		-1,
		0,
		nil,
		page+size,
		unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE,
	)
	if err != nil {
		return nil, err
	}
	unmap := func() error { return unix.MunmapPtr(base, page+size) }
	at, err := unix.MmapPtr(
		fd,
		0,
		unsafe.Add(base, page),
		size,
		unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_FIXED,
	)
	if err != nil {
		return nil, errors.Join(err, unmap())
	}
	r, err := newRing(unsafe.Slice((*byte)(at), size), slots)
	if err != nil {
		return nil, errors.Join(err, unmap())
	}
	r.node, r.close = (*robustNode)(unsafe.Add(at, -nodeBefore)), unmap
	return r, nil
}

// slotsOf returns how many slots a ring of so many bytes has room for.
func slotsOf(size int64) (uint64, error) {
	slots := uint64(max(0, size-ringData)) / slotBytes
	if slots < minSlots || slots > maxSlots || slots&(slots-1) != 0 || uint64(size) != ringData+slots*slotBytes {
		return 0, fmt.Errorf("a ring of %d bytes is not of a size that an agent makes", size)
	}
	return slots, nil
}

// existing looks for the ring of an agent that is in p already: one that was loaded at
// start holds it open, one that a daemon injected has it only mapped. It returns errNoRing
// where there is none of p's own, and another error for one that cannot be used.
func existing(p *proc.Process) (*ring, error) {
	var last error
	for _, m := range append(procfile.Mapped(p.PID, ringName), openRings(p)...) {
		r, err := openRing(p, m, 0)
		if err == nil && r.load32(ringState) != stateGone {
			return r, nil
		}
		if err == nil {
			_ = r.close()
			continue
		}
		if !errors.Is(err, errNotOurs) && !errors.Is(err, fs.ErrNotExist) &&
			!errors.Is(
				err,
				procfile.ErrReplaced,
			) { // a fork inherits the mapping of its parent's ring, and may let it go
			last = err
		}
	}
	if last != nil {
		return nil, last
	}
	return nil, errNoRing
}

// openRings returns the open memfds that are called like a ring.
func openRings(p *proc.Process) []procfile.Memfd {
	found, err := procfile.Descriptors(p.PID, ringName)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(found, func(m procfile.Memfd) bool { return m.Name != ringName })
}

// ringFiles returns their inode numbers.
func ringFiles(p *proc.Process) []uint64 {
	var inodes []uint64
	for _, m := range openRings(p) {
		inodes = append(inodes, m.Inode)
	}
	return inodes
}

func procPath(p *proc.Process, name string) string {
	return filepath.Join("/proc", strconv.FormatUint(uint64(p.PID), 10), name)
}
