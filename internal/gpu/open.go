package gpu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/target"
)

// ringName is what the agent calls its memfd; memfdPath what the kernel makes of it.
const (
	ringName  = "inferscope-ring"
	memfdPath = "/memfd:" + ringName + " (deleted)"
)

// Bounds of a ring's size, in slots: the agent is asked for what the daemon wants, an
// agent that was loaded at start chooses by itself.
const (
	minSlots = 1 << 8
	maxSlots = 1 << 20
)

var errNoRing = errors.New("no agent's ring")

// openRing opens the ring that link, a magic link in /proc/PID, stands for, and maps it.
// Whatever the target has put there is looked at before it is opened: opening a device or
// a fifo may block or do something. want is the number of slots, 0 for any that is within bounds.
func openRing(p *target.Process, link string, want uint64) (*ring, error) {
	fd, size, err := target.OpenMemfd(p, link)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	slots, err := slotsOf(size)
	if err != nil {
		return nil, err
	}
	if want != 0 && slots != want {
		return nil, fmt.Errorf("%s has room for %d slots instead of %d", link, slots, want)
	}
	r, err := mapRing(fd, slots)
	if err != nil {
		return nil, fmt.Errorf("mapping %s: %w", link, err)
	}
	if r.inode, err = inodeOf(fd); err == nil {
		err = r.check(p.NSPID)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the ring %s: %w", link, err), r.close())
	}
	return r, nil
}

// mapRing maps a ring of so many slots behind a page of our own, for a lifeline.
func mapRing(fd int, slots uint64) (*ring, error) {
	page, size := uintptr(os.Getpagesize()), uintptr(ringData+slots*slotBytes)
	base, err := unix.MmapPtr(-1, 0, nil, page+size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	unmap := func() error { return unix.MunmapPtr(base, page+size) }
	at, err := unix.MmapPtr(fd, 0, unsafe.Add(base, page), size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
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
func existing(p *target.Process) (*ring, error) {
	var last error
	for _, link := range append(target.MappedMemfds(p, ringName), openRings(p)...) {
		r, err := openRing(p, link, 0)
		if err == nil && r.load32(ringState) != stateGone {
			return r, nil
		}
		if err == nil {
			_ = r.close()
			continue
		}
		if !errors.Is(err, errNotOurs) && !errors.Is(err, fs.ErrNotExist) { // a fork inherits the mapping of its parent's ring, and may let it go
			last = err
		}
	}
	if last != nil {
		return nil, last
	}
	return nil, errNoRing
}

// Bounds of the search.
const (
	maxFiles = 1 << 16
	maxFound = 8
)

// openRings returns links to the open files that are called like a ring.
func openRings(p *target.Process) []string {
	dir, err := os.Open(procPath(p, "fd"))
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(maxFiles) // what could be read is looked at
	var links []string
	for _, name := range names {
		link := filepath.Join(dir.Name(), name)
		if text, err := os.Readlink(link); err == nil && text == memfdPath && len(links) < maxFound {
			links = append(links, link)
		}
	}
	return links
}

// ringFiles returns the inode numbers of the open files that are called like a ring.
func ringFiles(p *target.Process) []uint64 {
	var inodes []uint64
	for _, link := range openRings(p) {
		var st unix.Stat_t
		if unix.Stat(link, &st) == nil { // else it is closed by now
			inodes = append(inodes, st.Ino)
		}
	}
	return inodes
}

func procPath(p *target.Process, name string) string {
	return filepath.Join("/proc", strconv.FormatUint(uint64(p.PID), 10), name)
}
