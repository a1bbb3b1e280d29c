package gpu

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

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

// wantSeals must be on a ring: could it shrink, the daemon would die of SIGBUS when the
// target shrinks it.
const wantSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

var errNoRing = errors.New("no agent's ring")

// openRing opens the ring that link, a magic link in /proc/PID, stands for, and maps it.
// Whatever the target has put there is looked at before it is opened: opening a device or
// a fifo may block or do something. want is the number of slots, 0 for any that is within bounds.
func openRing(p *target.Process, link string, want uint64) (*ring, error) {
	fd, err := openChecked(p, link)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	slots, err := slotsOf(fd)
	if err != nil {
		return nil, err
	}
	if want != 0 && slots != want {
		return nil, fmt.Errorf("%s has room for %d slots instead of %d", link, slots, want)
	}
	mem, err := unix.Mmap(fd, 0, int(ringData+slots*slotBytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping %s: %w", link, err)
	}
	r, err := newRing(mem, slots)
	if err == nil {
		err = r.check(p.NSPID)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the ring %s: %w", link, err), unix.Munmap(mem))
	}
	r.close = func() error { return unix.Munmap(mem) }
	return r, nil
}

// openChecked opens what link stands for, if it is a memfd of shared memory, for reading
// and writing. The O_PATH descriptor holds the very file that is looked at.
func openChecked(p *target.Process, link string) (int, error) {
	path, err := unix.Open(link, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("opening %s: %w", link, err)
	}
	defer unix.Close(path)
	if !p.Alive() {
		return -1, fmt.Errorf("opening %s: %w", link, unix.ESRCH)
	}
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := errors.Join(unix.Fstat(path, &st), unix.Fstatfs(path, &fs)); err != nil {
		return -1, fmt.Errorf("looking at %s: %w", link, err)
	}
	// Huge pages, too, can be sealed, and raise SIGBUS when there are none left.
	if st.Mode&unix.S_IFMT != unix.S_IFREG || fs.Type != unix.TMPFS_MAGIC {
		return -1, fmt.Errorf("%s is no shared memory", link)
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(path), unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("opening %s: %w", link, err)
	}
	return fd, nil
}

// slotsOf returns how many slots the file of a ring has room for.
func slotsOf(fd int) (uint64, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return 0, fmt.Errorf("asking for the seals of a ring: %w", err)
	}
	if seals&wantSeals != wantSeals {
		return 0, fmt.Errorf("the ring is not sealed against changes of its size (seals %#x)", seals)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("looking at a ring: %w", err)
	}
	slots := uint64(max(0, st.Size-ringData)) / slotBytes
	if slots < minSlots || slots > maxSlots || slots&(slots-1) != 0 || uint64(st.Size) != ringData+slots*slotBytes {
		return 0, fmt.Errorf("a ring of %d bytes is not of a size that an agent makes", st.Size)
	}
	return slots, nil
}

// existing looks for the ring of an agent that is in p already: one that was loaded at
// start holds it open, one that a daemon injected has it only mapped. It returns errNoRing
// where there is none of p's own, and another error for one that cannot be used.
func existing(p *target.Process) (*ring, error) {
	var last error
	for _, link := range append(mappedRings(p), openRings(p)...) {
		r, err := openRing(p, link, 0)
		if err == nil && r.load32(ringState) != stateGone {
			return r, nil
		}
		if err == nil {
			_ = r.close()
			continue
		}
		if !errors.Is(err, errNotOurs) { // a fork inherits the mapping of its parent's ring
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
	maxMapsBytes = 64 << 20
	maxFiles     = 1 << 16
	maxFound     = 8
)

// mappedRings returns links to the mapped files that are called like a ring.
func mappedRings(p *target.Process) []string {
	f, err := os.Open(procPath(p, "maps"))
	if err != nil {
		return nil
	}
	defer f.Close()
	var links []string
	lines := bufio.NewScanner(io.LimitReader(f, maxMapsBytes))
	lines.Buffer(make([]byte, 64<<10), 64<<10)
	for lines.Scan() && len(links) < maxFound {
		if area, _, ok := bytes.Cut(lines.Bytes(), []byte(" ")); ok && bytes.HasSuffix(lines.Bytes(), []byte(" "+memfdPath)) {
			links = append(links, procPath(p, "map_files/"+trimZeros(string(area))))
		}
	}
	return links
}

// trimZeros makes the name of a link in map_files of the first word of a line of maps,
// which pads addresses to eight digits.
func trimZeros(area string) string {
	start, end, _ := strings.Cut(area, "-")
	return strings.TrimLeft(start, "0") + "-" + strings.TrimLeft(end, "0")
}

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

func procPath(p *target.Process, name string) string {
	return filepath.Join("/proc", strconv.FormatUint(uint64(p.PID), 10), name)
}
