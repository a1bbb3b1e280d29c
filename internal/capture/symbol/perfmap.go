package symbol

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sort"
	"strconv"
	"syscall"
)

const (
	// maxPerfRead bounds how much of a perf map is read at a time; what is beyond it is
	// read at the next look.
	maxPerfRead = 16 << 20 // bytes
	// perfEntryBytes is what one function costs in memory.
	perfEntryBytes = 16
)

var (
	errOwner      = errors.New("its owner is neither the process's nor root")
	errOlder      = errors.New("it is older than the process")
	errNotRegular = errors.New("not a regular file")
)

// perfMap is the index of a /tmp/perf-PID.map, which a compiler of code at run time
// writes: a line "START SIZE name" in hex for each function. The file only grows, and
// a later line replaces an earlier one for the same address.
type perfMap struct {
	entries []perfEntry // by address, then age
	key     Key         // of the file; its size and change are not compared
	parsed  int64       // bytes
	last    perfEntry   // parsed
	full    bool        // the limit is reached
	stale   bool        // a line is not where it was: the file was written anew
	resets  int         // how often that was so
}

// perfEntry is one function. Its name stays in the file.
type perfEntry struct {
	addr uint64
	size uint32
	line uint32 // where in the file
}

// refresh reads what was appended since, keeping at most limit functions.
func (p *perfMap) refresh(f File, of Process, limit int) {
	key, err := admit(f, of)
	if err != nil {
		p.reset(Key{})
		return
	}
	if p.stale || key.inode != p.key.inode || key.dev != p.key.dev || key.size < p.parsed || !holds(f, p.last) {
		p.reset(key) // another file, or written anew
	}
	if p.full || key.size <= p.parsed || p.parsed > math.MaxUint32-maxPerfRead-maxLine {
		return
	}
	if p.parse(io.NewSectionReader(f, p.parsed, min(key.size-p.parsed, maxPerfRead)), limit) {
		p.arrange()
	}
}

func (p *perfMap) reset(key Key) { *p = perfMap{key: key, resets: p.resets + 1} }

// holds reports whether a line that was parsed is still there; the zero entry is.
func holds(f io.ReaderAt, e perfEntry) bool {
	return e == (perfEntry{}) || readPerf(f, e) != ""
}

// arrange sorts the functions and drops those that were replaced.
func (p *perfMap) arrange() {
	slices.SortFunc(p.entries, func(a, b perfEntry) int {
		return cmp.Or(cmp.Compare(a.addr, b.addr), cmp.Compare(a.line, b.line))
	})
	// Of several lines for one address only the last counts.
	kept := p.entries[:0]
	for i, e := range p.entries {
		if i+1 == len(p.entries) || p.entries[i+1].addr != e.addr {
			kept = append(kept, e)
		}
	}
	p.entries = kept
}

// admit checks that a file is what its process may say about itself.
func admit(f File, of Process) (Key, error) {
	key, err := Identify(f)
	if err != nil {
		return Key{}, err
	}
	info, err := f.Stat()
	if err != nil {
		return Key{}, fmt.Errorf("looking at a perf map: %w", err)
	}
	if !info.Mode().IsRegular() {
		return Key{}, fmt.Errorf("a perf map of mode %s: %w", info.Mode(), errNotRegular)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != of.UID && st.Uid != 0 {
		return Key{}, fmt.Errorf("a perf map of uid %d for a process of uid %d: %w", st.Uid, of.UID, errOwner)
	}
	if info.ModTime().Before(of.Born) {
		return Key{}, fmt.Errorf("a perf map of %s for a process of %s: %w", info.ModTime(), of.Born, errOlder)
	}
	return key, nil
}

// parse reads whole lines; one that the process is still writing waits, and one that
// is longer than any is passed over.
func (p *perfMap) parse(r io.Reader, limit int) (added bool) {
	in := bufio.NewReaderSize(r, maxLine)
	for long := false; ; {
		line, err := in.ReadSlice('\n')
		cut := errors.Is(err, bufio.ErrBufferFull)
		if err != nil && !cut {
			return added
		}
		at := p.parsed
		p.parsed += int64(len(line))
		e, _, ok := parsePerf(line)
		if ok && !cut && !long {
			if len(p.entries) >= limit {
				p.full = true
				return added
			}
			e.line = uint32(at)
			p.entries, p.last, added = append(p.entries, e), e, true
		}
		long = cut
	}
}

// parsePerf reads "START SIZE name".
func parsePerf(line []byte) (e perfEntry, name string, ok bool) {
	start, rest, ok1 := bytes.Cut(line, []byte(" "))
	length, rest, ok2 := bytes.Cut(rest, []byte(" "))
	if rest = bytes.TrimSpace(rest); !ok1 || !ok2 || len(rest) == 0 {
		return e, "", false
	}
	addr, err1 := strconv.ParseUint(string(bytes.TrimPrefix(start, []byte("0x"))), 16, 64)
	size, err2 := strconv.ParseUint(string(bytes.TrimPrefix(length, []byte("0x"))), 16, 32)
	if err1 != nil || err2 != nil || size == 0 || addr > math.MaxUint64-size {
		return e, "", false
	}
	return perfEntry{addr: addr, size: uint32(size)}, string(rest), true
}

// at returns the function that an address lies in.
func (p *perfMap) at(addr uint64) (perfEntry, bool) {
	next := sort.Search(len(p.entries), func(i int) bool { return p.entries[i].addr > addr })
	for i := next - 1; i >= 0 && next-i <= maxEnclosing; i-- {
		if e := p.entries[i]; addr-e.addr < uint64(e.size) {
			return e, true
		}
	}
	return perfEntry{}, false
}

// name reads the name of an entry out of an opened perf map.
func (p *perfMap) name(f File, e perfEntry) (string, error) {
	key, err := Identify(f)
	if err != nil || key.dev != p.key.dev || key.inode != p.key.inode {
		return "", errors.Join(errChanged, err)
	}
	name := readPerf(f, e)
	if name == "" {
		p.stale = true
		return "", fmt.Errorf("reading a perf map: %w", errChanged)
	}
	return name, nil
}

// readPerf returns the name in the line of an entry, "" where that is another line now.
func readPerf(f io.ReaderAt, e perfEntry) string {
	b := make([]byte, 1024)
	n, _ := f.ReadAt(b, int64(e.line))
	line, _, _ := bytes.Cut(b[:n], []byte("\n"))
	now, name, ok := parsePerf(line)
	if !ok || now.addr != e.addr || now.size != e.size {
		return ""
	}
	return name
}
