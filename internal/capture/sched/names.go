package sched

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

const (
	procRoot = "/proc"
	// maxObjects and maxOtherThreads bound what is kept: 8,192 names of 100 bytes are 1 MB.
	// A recording of 60 s needs hundreds.
	maxObjects      = 8192
	maxOtherThreads = 8192
	// lookupsPerBatch bounds the time that one batch takes: a lookup costs 5 to 20 µs.
	lookupsPerBatch = 64
	maxName         = 4096 // PATH_MAX
	maxAliases      = 3    // names that share one inode number
)

// names finds what events refer to by number: files by descriptor and inode, and
// threads of other processes. Numbers are used again, so what is found belongs to
// the time of the first event that had it.
type names struct {
	proc  string
	calls [8]uint64 // those of fileCalls

	mu           sync.Mutex
	watched      map[uint32]bool
	seen         map[fileKey]bool
	objects      map[objectKey][]string
	otherThreads map[uint64]string // by tid | pid << 32
	met          recent[uint64]
	opened       recent[fileKey]
}

// recent holds what needed no look lately: nearly every event names what the ones before it
// did, and each of the maps costs more than all else that is done with an event.
type recent[K comparable] [256]K

// has reports whether key is there, in the place that belongs to hash; it is from now on.
func (r *recent[K]) has(hash uint64, key K) bool {
	at := &r[hash*0x9e3779b97f4a7c15>>56]
	if *at == key {
		return true
	}
	*at = key
	return false
}

// fileKey is what an event says of a file.
type fileKey struct {
	pid, fd uint32
	inode   uint64
}

// objectKey is what a recording names a file by.
type objectKey struct {
	pid   uint32
	inode uint64
}

func newNames(proc string) *names {
	return &names{
		proc: proc, calls: callBits(fileCalls()), watched: map[uint32]bool{}, seen: map[fileKey]bool{},
		objects: map[objectKey][]string{}, otherThreads: map[uint64]string{},
	}
}

// watch says that pid is a target's process, or no longer. Its files stay known for
// the recordings that still show it.
func (n *names) watch(pid uint32, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.met, n.opened = recent[uint64]{}, recent[fileKey]{}
	if on {
		n.watched[pid] = true
		for key := range n.objects {
			if key.pid == pid { // of another process that had the pid
				delete(n.objects, key)
			}
		}
		for key := range n.seen {
			if key.pid == pid {
				delete(n.seen, key)
			}
		}
	} else {
		delete(n.watched, pid)
	}
}

func (n *names) observe(batch []event.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	left := lookupsPerBatch
	for i := range batch {
		e := &batch[i]
		if e.Kind != event.OffCPU || e.Flags&event.Mark != 0 || left == 0 {
			continue
		}
		if who := e.Args[1]; who != 0 && n.meet(who) {
			left--
		}
		if left > 0 && n.open(e) {
			left--
		}
	}
}

// meet finds the name of a thread of another process, and reports whether it had to look.
func (n *names) meet(who uint64) bool {
	pid, tid := uint32(who>>32), uint32(who)
	if n.met.has(who, who) || n.watched[pid] || pid == 0 {
		return false
	}
	if _, known := n.otherThreads[who]; known {
		return false
	}
	if len(n.otherThreads) >= maxOtherThreads {
		clear(n.otherThreads)
		n.met = recent[uint64]{}
	}
	comm, err := os.ReadFile(n.path(pid) + "/task/" + strconv.Itoa(int(tid)) + "/comm")
	if err != nil {
		comm = nil // it is gone: an empty name keeps it from being looked for again
	}
	n.otherThreads[who] = clean(strings.TrimSuffix(string(comm), "\n"))
	return true
}

// open finds the name of the file that the event waited for, and reports whether it had to look.
func (n *names) open(e *event.Event) bool {
	inode := e.Args[3] & (1<<48 - 1)
	if e.Args[3] == 0 || e.Flags&event.Preempted != 0 || !n.isDescriptor(e.Func) {
		return false
	}
	key := fileKey{e.PID, uint32(e.Args[2]), inode}
	if n.opened.has(uint64(key.pid)<<32^uint64(key.fd)^inode<<8, key) || n.seen[key] {
		return false
	}
	if len(n.seen) >= maxObjects {
		clear(n.seen)
		n.opened = recent[fileKey]{}
	}
	n.seen[key] = true
	name := n.file(key)
	if name == "" {
		return true
	}
	if len(n.objects) >= maxObjects {
		clear(n.objects)
	}
	// Pipes, sockets and files count their inodes apart, and all anonymous inodes are one.
	id := objectKey{key.pid, inode}
	if known := n.objects[id]; len(known) < maxAliases && !slices.Contains(known, name) {
		n.objects[id] = append(known, name)
	}
	return true
}

func (n *names) isDescriptor(nr uint16) bool {
	return nr < 512 && n.calls[nr/64]>>(nr%64)&1 != 0
}

// file returns the name of an open file, or "" where the descriptor is another file's by now.
func (n *names) file(key fileKey) string {
	fd := strconv.Itoa(int(key.fd))
	if n.inode(key.pid, fd) != key.inode {
		return ""
	}
	name, err := os.Readlink(n.path(key.pid) + "/fd/" + fd)
	if err != nil || n.inode(key.pid, fd) != key.inode {
		return ""
	}
	return clean(name)
}

// inode returns the inode number of an open file as the kernel programs see it; 0
// where it cannot be had. It comes from fdinfo (Linux 5.14) and not from stat, which
// asks the file system: one of the target's own may never answer.
func (n *names) inode(pid uint32, fd string) uint64 {
	f, err := os.Open(n.path(pid) + "/fdinfo/" + fd)
	if err != nil {
		return 0
	}
	defer f.Close()
	var head [256]byte // pos, flags, mnt_id and ino come first
	count, err := io.ReadFull(f, head[:])
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return 0
	}
	for line := range strings.Lines(string(head[:count])) {
		if digits, ok := strings.CutPrefix(line, "ino:"); ok && strings.HasSuffix(line, "\n") {
			ino, _ := strconv.ParseUint(strings.TrimSpace(digits), 10, 64) // 0 is no inode
			return ino & (1<<48 - 1)
		}
	}
	return 0
}

func (n *names) path(pid uint32) string { return filepath.Join(n.proc, strconv.Itoa(int(pid))) }

func clean(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxName)], "?") }

func (n *names) allObjects() []recording.Object {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]recording.Object, 0, len(n.objects))
	for key, aliases := range n.objects {
		out = append(out, recording.Object{PID: key.pid, Inode: key.inode, Name: strings.Join(aliases, " or ")})
	}
	return out
}

func (n *names) allOtherThreads() []recording.Thread {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]recording.Thread, 0, len(n.otherThreads))
	for who, name := range n.otherThreads {
		if name != "" {
			out = append(out, recording.Thread{PID: uint32(who >> 32), TID: uint32(who), Name: name})
		}
	}
	return out
}
