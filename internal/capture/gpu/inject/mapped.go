package inject

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/procfile"
)

// findImage looks for copies of an image that an earlier Load left, and decides
// whether to start one of them or to load another.
func (pl *plan) findImage(procfs int) error {
	mappings, err := proc.Mappings(pl.process)
	if err != nil {
		return gone(pl.process, fmt.Errorf("list its mappings: %w", err))
	}
	copies := slices.DeleteFunc(
		mappings,
		func(m proc.Mapping) bool { return !strings.HasPrefix(m.Path, "/memfd:"+fileName) },
	)
	var chosen uint64
	for _, m := range copies {
		if start := pl.startIn(m); start != 0 {
			pl.start, chosen = start, m.Inode
		}
	}
	if err := pl.findFiles(procfs, copies); err != nil {
		return err
	}
	if pl.start != 0 {
		if err := pl.settled(chosen); err != nil {
			return err
		}
		return pl.entries.prove(memory{int(pl.process.PID)}, pl.start)
	}
	// The name stays in libc's list of libraries, which a debugger opens in its own process: there, /proc/self has
	// no such thread. And libc knows libraries by this name, and would take the same one for the same library.
	pl.path = "/proc" + strings.Repeat("/.", min(len(copies), 64)) + "/self/task/%d/fd/%d"
	return nil
}

// startIn returns the entry of the image in m, if m is a mapping of this very image.
func (pl *plan) startIn(m proc.Mapping) uint64 {
	if pl.image.StartOffset == 0 {
		return 0
	}
	file, err := elf.NewFile(bytes.NewReader(pl.image.Bytes))
	if err != nil {
		return 0
	}
	for _, s := range file.Progs {
		if s.Type != elf.PT_LOAD || s.Flags&elf.PF_X == 0 || down(s.Off, uint64(os.Getpagesize())) != m.Offset {
			continue
		}
		bias := m.Start - (s.Vaddr - (s.Off - m.Offset))
		if pl.sameImage(file, bias) {
			return bias + pl.image.StartOffset
		}
	}
	return 0
}

// sameImage compares the notes of the image, which hold its build id, with memory.
func (pl *plan) sameImage(file *elf.File, bias uint64) bool {
	for _, s := range file.Progs {
		if s.Type != elf.PT_NOTE || s.Filesz == 0 || s.Filesz > 4096 {
			continue
		}
		want := make([]byte, s.Filesz)
		if _, err := s.ReadAt(want, 0); err != nil || !bytes.Contains(want, pl.image.BuildID[:]) {
			continue
		}
		have := make([]byte, len(want))
		return (memory{int(pl.process.PID)}).read(have, bias+s.Vaddr) == nil && bytes.Equal(have, want)
	}
	return false
}

var errStillLoading = errors.New("an image that was injected a moment ago is still starting")

// settled waits until the file behind a mapped image is not open any more: an image
// closes it when it has been relocated and has said hello. Before that it must not be entered.
func (pl *plan) settled(inode uint64) error {
	for range 50 {
		open, err := procfile.Descriptors(pl.process.PID, fileName)
		if err != nil {
			return gone(pl.process, err)
		}
		if !slices.ContainsFunc(open, func(f procfile.Memfd) bool { return f.Inode == inode }) {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return errStillLoading
}

// findFiles notes the files that daemons before this one left open.
func (pl *plan) findFiles(procfs int, copies []proc.Mapping) error {
	open, err := procfile.Descriptors(pl.process.PID, fileName)
	if err != nil {
		return gone(pl.process, err)
	}
	for _, f := range open {
		mapped := slices.ContainsFunc(copies, func(m proc.Mapping) bool { return m.Inode == f.Inode })
		if !mapped && abandoned(procfs, f.Name) {
			pl.leakedFDs = append(pl.leakedFDs, f)
		}
	}
	return nil
}

// preceded refuses where the target has made the sign of an image since it was last looked at. It is asked when a
// thread has called CUDA, and before that one is touched: what CUDA loads by itself, it loads before it can be called.
func (pl *plan) preceded() error {
	if pl.image.Sign == "" {
		return nil
	}
	open, err := procfile.Descriptors(pl.process.PID, pl.image.Sign)
	if err != nil {
		return gone(pl.process, err)
	}
	for _, f := range open {
		if f.Name == pl.image.Sign && !slices.Contains(pl.image.Known, f.Inode) {
			return refuse(ErrPreceded, "", "it is used as it is")
		}
	}
	return nil
}
