package profile

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/lpm"
	"go.opentelemetry.io/ebpf-profiler/process"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/profile/unwind"
	"github.com/inferscope/inferscope/internal/capture/symbol"
)

// maxVDSO bounds the vdso, in bytes; it has 8 to 16 kB.
const maxVDSO = 256 << 10

// processSpace is the code that a process has mapped, by address.
type processSpace struct {
	mappings map[uint64]*mappedImage
}

// mappedImage is one mapping of code.
type mappedImage struct {
	length, dev, inode, offset uint64
	image                      *image // nil: it is nothing that can be unwound
	prefixes                   []lpm.Prefix
}

// holder is a process with a file mapped, through which the file is opened, whatever its
// path means by now.
type holder struct {
	process process.Process
	mapping process.RawMapping
}

// codeFile is what code is read from.
type codeFile interface {
	io.ReaderAt
	io.Closer
}

func (h *holder) open() (codeFile, error) {
	if !h.mapping.IsVDSO() {
		return h.process.OpenMappingFile(&h.mapping)
	}
	b := make([]byte, min(h.mapping.Length, maxVDSO))
	if _, err := h.process.GetRemoteMemory().ReadAt(b, int64(h.mapping.Vaddr)); err != nil {
		return nil, err
	}
	return &vdsoFile{bytes.NewReader(b)}, nil
}

// vdsoFile is the vdso, which is in no file system.
type vdsoFile struct{ *bytes.Reader }

// Close does nothing.
func (*vdsoFile) Close() error { return nil }

// Stat reports what symbol.Identify asks for.
func (f *vdsoFile) Stat() (os.FileInfo, error) { return vdsoInfo{f.Size()}, nil }

// vdsoInfo is what is known of an image in memory: its name and its size in bytes, as fs.FileInfo has them.
type vdsoInfo struct{ size int64 }

// Name returns what the kernel calls it.
func (i vdsoInfo) Name() string { return process.VdsoPathName }

// Size returns bytes.
func (i vdsoInfo) Size() int64 { return i.size }

// Mode knows of none.
func (vdsoInfo) Mode() os.FileMode { return 0 }

// ModTime knows of none: it came with the kernel.
func (vdsoInfo) ModTime() time.Time { return time.Time{} }

// IsDir returns false.
func (vdsoInfo) IsDir() bool { return false }

// Sys knows nothing beyond that.
func (vdsoInfo) Sys() any { return nil }

// synchronise brings what the programs know of a process up to date: it has begun,
// ended, or runs code that they know nothing of.
func (l *loader) synchronise(event libpf.PIDTID) {
	p := process.New(event.PID(), event.TID())
	var code []process.RawMapping
	_, err := p.IterateMappings(func(m process.RawMapping) bool {
		if m.IsExecutable() && !m.IsAnonymous() && len(code) < maxSpaces {
			m.Path = strings.Clone(m.Path) // it lies in a buffer that is used again
			code = append(code, m)
		}
		return true
	})
	pid := uint32(event.PID())
	switch {
	case errors.Is(err, process.ErrNoMappings):
		l.maps.forget(pid) // its main thread has ended; another one may tell more
	case os.IsPermission(err): // it is asked about no more, so that it does not ask all the time
	case err != nil:
		l.drop(pid)
	default:
		l.update(p, pid, code)
	}
}

// update takes a list of mappings of code.
func (l *loader) update(p process.Process, pid uint32, code []process.RawMapping) {
	l.mu.Lock()
	s := l.processes[pid]
	fresh := s == nil && len(l.processes) < maxProcesses
	if fresh {
		s = &processSpace{mappings: map[uint64]*mappedImage{}}
		l.processes[pid] = s
	}
	l.mu.Unlock()
	if s == nil {
		return
	}
	// Only the goroutine in follow changes a space, so it may be read without the lock.
	change := s.changes(code)
	for i := range change.come {
		change.files = append(change.files, l.image(pid, holder{p, change.come[i]}))
	}
	if fresh {
		l.prefetch(p, &change)
	}
	l.poke() // files are read while the programs are loaded
	if fresh && l.maps.mapped(pid, marker(), 0, 0) != nil {
		l.log.Debug("native code is not unwound", zap.Uint32("pid", pid))
	}
	l.remove(pid, s, change.removed)
	for i := range change.come {
		l.add(pid, s, &change.come[i], change.files[i])
	}
	if len(change.come) > 0 {
		l.maps.forget(pid) // a program that starts goes on to map files: do not wait to hear of those
	}
}

// change is what two lists of mappings differ in.
type change struct {
	removed []uint64
	come    []process.RawMapping
	files   []*image // of those that have come; nil where it is nothing that can be unwound
}

func (s *processSpace) changes(code []process.RawMapping) change {
	var out change
	there := make(map[uint64]bool, len(code))
	for i := range code {
		m := &code[i]
		old := s.mappings[m.Vaddr]
		if old != nil && old.length == m.Length && old.dev == m.Device && old.inode == m.Inode &&
			old.offset == m.FileOffset {
			there[m.Vaddr] = true
			continue
		}
		out.come = append(out.come, *m)
	}
	for start := range s.mappings {
		if !there[start] {
			out.removed = append(out.removed, start)
		}
	}
	return out
}

func (l *loader) remove(pid uint32, s *processSpace, gone []uint64) {
	for _, start := range gone {
		m := s.mappings[start]
		delete(s.mappings, start)
		l.maps.unmapped(pid, m.prefixes)
		l.leave(m.image)
	}
}

// leave notes that a file is mapped once less.
func (l *loader) leave(x *image) {
	if x == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if x.users--; x.users == 0 {
		x.unused = time.Now()
	}
}

// add tells the programs of a mapping. What cannot be read is kept in mind as well, so
// that it is not looked at each time.
func (l *loader) add(pid uint32, s *processSpace, raw *process.RawMapping, x *image) {
	m := &mappedImage{length: raw.Length, dev: raw.Device, inode: raw.Inode, offset: raw.FileOffset}
	s.mappings[raw.Vaddr] = m
	if x == nil {
		return
	}
	addr, ok := codeAddress(x.segments, raw.FileOffset)
	prefixes, err := lpm.CalculatePrefixList(raw.Vaddr, raw.Vaddr+raw.Length)
	if !ok || err != nil || l.maps.mapped(pid, prefixes, x.number, raw.Vaddr-addr) != nil {
		l.leave(x)
		return
	}
	m.image, m.prefixes = x, prefixes
}

// codeAddress returns the address that a file gives to the first byte of a mapping of its
// code. A mapping begins at a page, and so, often, before the segment that it is of; the
// bytes before are those of another segment, with other addresses.
func codeAddress(segments symbol.Segments, offset uint64) (addr uint64, ok bool) {
	for _, s := range segments {
		begin := s.Offset &^ uint64(os.Getpagesize()-1)
		if s.Executable && offset >= begin && offset < s.Offset+s.Size {
			return s.Addr + offset - s.Offset, true
		}
	}
	return 0, false
}

// image returns the file of a mapping, which counts as one more; nil where it is nothing
// that can be unwound.
func (l *loader) image(pid uint32, h holder) *image {
	in, err := h.open()
	if err != nil {
		return nil
	}
	defer in.Close()
	file, ok := in.(symbol.File)
	if !ok {
		return nil
	}
	key := imageKey{path: h.mapping.Path}
	if key.file, err = symbol.Identify(file); err != nil {
		return nil
	}
	l.mu.Lock()
	x := l.byKey[key]
	if x != nil {
		x.users++
		x.holder = h
		if x.state == refused && x.unopened {
			x.state, x.unopened = unread, false
		}
	}
	l.mu.Unlock()
	if x == nil {
		x = l.newImage(pid, key, h, file)
	}
	return x
}

func (l *loader) newImage(pid uint32, key imageKey, h holder, file symbol.File) *image {
	segments, err := symbol.ReadSegments(file)
	if err != nil {
		return nil
	}
	x := &image{
		key: key, segments: segments, size: unwind.Size(file), holder: h, users: 1,
		module: l.convert.modules.named(pid, h.mapping.Inode, h.mapping.Path),
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.images) >= maxImages {
		return nil
	}
	l.last++
	x.number = l.last
	l.images[x.number], l.byKey[key] = x, x
	return x
}

// drop forgets a process.
func (l *loader) drop(pid uint32) {
	l.maps.forget(pid)
	l.mu.Lock()
	s := l.processes[pid]
	delete(l.processes, pid)
	l.mu.Unlock()
	if s == nil {
		return
	}
	l.maps.unmapped(pid, marker())
	for start := range s.mappings {
		l.remove(pid, s, []uint64{start})
	}
}

// clean drops processes that ended unseen, and the tables of files that nobody has mapped
// for a while.
func (l *loader) clean(now time.Time) {
	l.mu.Lock()
	var dead []uint32
	for pid := range l.processes {
		if errors.Is(unix.Kill(int(pid), 0), unix.ESRCH) {
			dead = append(dead, pid)
		}
	}
	var unused []*image
	for number, x := range l.images {
		if x.users == 0 && x.state != reading && now.Sub(x.unused) > unloadAfter {
			delete(l.images, number)
			delete(l.byKey, x.key)
			unused = append(unused, x)
		}
	}
	for _, x := range unused {
		if x.filled != nil {
			l.loaded -= x.filled.count
		}
	}
	l.mu.Unlock()
	for _, pid := range dead {
		l.drop(pid)
	}
	for _, x := range unused {
		if x.filled != nil {
			l.maps.withdraw(x.number, x.filled)
		}
	}
}
