package proc

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/inferscope/inferscope/internal/capture/procfile"
)

// procfs reads /proc, with a bound on bytes and, where the target can make a
// read block, on time.
type procfs struct {
	root string
	// slots holds a place for each read that may block. One that never ends
	// keeps its place, so that a hostile target costs at most so many threads.
	slots chan struct{}
}

const (
	maxCmdline = 4096
	// slowReads is how many cmdlines may hang at once before no more are read.
	slowReads = 4
	// cmdlineTimeout is long against a read (10 µs) and short against a person.
	cmdlineTimeout = 200 * time.Millisecond
)

func newProcfs(root string) *procfs {
	return &procfs{root: root, slots: make(chan struct{}, slowReads)}
}

func (fs *procfs) path(pid uint32, name string) string {
	return fs.root + "/" + strconv.FormatUint(uint64(pid), 10) + "/" + name
}

// head returns at most limit bytes of a file of a process.
func (fs *procfs) head(pid uint32, name string, limit int64) ([]byte, error) {
	return procfile.Head(fs.path(pid, name), limit)
}

func (fs *procfs) stat(pid uint32) (stat, error) {
	line, err := fs.head(pid, "stat", maxStat)
	if err != nil {
		return stat{}, err
	}
	s, err := parseStat(line)
	if err != nil {
		return stat{}, fmt.Errorf("reading %s: %w", fs.path(pid, "stat"), err)
	}
	return s, nil
}

func (fs *procfs) status(pid uint32) (status, error) {
	text, err := procfile.ReadStatus(fs.path(pid, "status"))
	if err != nil {
		return status{}, err
	}
	return parseStatus(text), nil
}

// cmdline returns the arguments joined with spaces, or "" where they cannot be
// had. The arguments live in the target's own memory, which it may have mapped
// from a file system that never answers, so the read has a deadline.
func (fs *procfs) cmdline(pid uint32) string {
	select {
	case fs.slots <- struct{}{}:
	default:
		return ""
	}
	text := make(chan string, 1)
	go func() {
		defer func() { <-fs.slots }()
		raw, err := fs.head(pid, "cmdline", maxCmdline)
		if err != nil {
			raw = nil
		}
		text <- joinArguments(raw)
	}()
	deadline := time.NewTimer(cmdlineTimeout)
	defer deadline.Stop()
	select {
	case s := <-text:
		return s
	case <-deadline.C:
		return ""
	}
}

func joinArguments(raw []byte) string {
	raw = bytes.TrimRight(raw, "\x00")
	return strings.ToValidUTF8(string(bytes.ReplaceAll(raw, []byte{0}, []byte{' '})), "?")
}

// pids calls visit with every process that /proc lists now.
func (fs *procfs) pids(visit func(pid uint32)) error {
	dir, err := os.Open(fs.root)
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(512)
		for _, name := range names {
			if pid, err := strconv.ParseUint(name, 10, 32); err == nil && pid > 0 {
				visit(uint32(pid))
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("listing %s: %w", fs.root, err)
		}
	}
}

// children returns what tells the children of a process that it has now. Where the kernel lists them by parent
// (CONFIG_PROC_CHILDREN) nothing else is read: a host has thousands of other processes.
func (fs *procfs) children() (func(parent uint32) []uint32, error) {
	if _, err := os.Stat(fs.root + "/thread-self/children"); err == nil {
		return fs.childrenOf, nil
	}
	children, err := fs.childrenByParent()
	return func(parent uint32) []uint32 { return children[parent] }, err
}

func (fs *procfs) childrenByParent() (map[uint32][]uint32, error) {
	children := make(map[uint32][]uint32)
	err := fs.pids(func(pid uint32) {
		if s, err := fs.stat(pid); err == nil {
			children[s.parent] = append(children[s.parent], pid)
		}
	})
	return children, err
}

const (
	// maxChildren bounds what is read of one list of children, in bytes.
	maxChildren = 1 << 20
	// maxReads bounds how often the lists are read until they stay the same.
	maxReads = 8
)

// childrenOf reads the children of a process. Where one of them is reaped, or a thread ends, in the middle of that, the
// kernel leaves others out (proc_pid_children(5)); then a second reading differs, because what had gone is not in it.
func (fs *procfs) childrenOf(parent uint32) []uint32 {
	last := ""
	for range maxReads {
		text := fs.childrenText(parent)
		if text == last {
			break
		}
		last = text
	}
	var out []uint32
	for line := range strings.Lines(last) {
		for _, field := range strings.Fields(line)[1:] { // the thread comes first
			if pid, err := strconv.ParseUint(field, 10, 32); err == nil {
				out = append(out, uint32(pid))
			}
		}
	}
	return out
}

// childrenText returns a line for each thread of a process: itself, and the children that it has made or inherited.
func (fs *procfs) childrenText(parent uint32) string {
	var text strings.Builder
	threads, err := os.ReadDir(fs.path(parent, "task"))
	if err != nil {
		return "" // it has gone
	}
	for _, t := range threads {
		list, err := fs.head(parent, "task/"+t.Name()+"/children", maxChildren)
		if err == nil {
			fmt.Fprintf(&text, "%s %s\n", t.Name(), bytes.TrimSpace(list))
		}
	}
	return text.String()
}
