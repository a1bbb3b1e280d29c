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
	"time"

	"github.com/inferscope/inferscope/internal/capture/procfile"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

const (
	procRoot = "/proc"
	// maxObjects and maxOtherThreads bound what is kept at a time: 8,192 names of 100 bytes are 1 MB.
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

	keep  time.Duration // for which names stay known that nothing needs but recordings
	clock func() time.Time

	mu      sync.Mutex
	watched map[uint32]bool
	files   map[uint32]*files // by process
	count   int               // of all that is seen in them
	ended   []endedFiles      // the oldest first
	met     recent[uint64]
	opened  recent[fileKey]

	// Threads of other processes by tid | pid << 32: what was met since begun, and what was met for keep before that and
	// not again.
	otherThreads, before map[uint64]string
	begun                time.Time
}

// files are those that the threads of one process waited for.
type files struct {
	seen    map[fileKey]bool
	objects map[uint64][]string // names by inode
}

// endedFiles are those of a process that ended at a time.
type endedFiles struct {
	pid   uint32
	files *files
	at    time.Time
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

func newNames(proc string, keep time.Duration) *names {
	n := &names{
		proc: proc, calls: callBits(fileCalls()), keep: keep, clock: time.Now,
		watched: map[uint32]bool{}, otherThreads: map[uint64]string{},
	}
	n.forgetFiles()
	n.begun = n.clock()
	return n
}

// watch notes that pid is a target's process, or no longer. Its files stay known for
// the recordings that still show it.
func (n *names) watch(pid uint32, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.met, n.opened = recent[uint64]{}, recent[fileKey]{}
	now := n.clock()
	n.expire(now)
	f := n.files[pid]
	switch {
	case on:
		n.watched[pid] = true
		n.forget(pid, f) // of another process that had the pid
	default:
		delete(n.watched, pid)
		if len(n.ended) >= maxObjects {
			n.forgetFiles()
		} else if f != nil {
			n.ended = append(n.ended, endedFiles{pid, f, now})
		}
	}
}

// expire forgets the files of processes that ended before what recordings still show.
func (n *names) expire(now time.Time) {
	old := 0
	for old < len(n.ended) && now.Sub(n.ended[old].at) > n.keep {
		n.forget(n.ended[old].pid, n.ended[old].files)
		old++
	}
	n.ended = slices.Delete(n.ended, 0, old)
}

// forget forgets the files of a process, unless the pid has those of another one by now.
func (n *names) forget(pid uint32, f *files) {
	if f != nil && n.files[pid] == f {
		n.count -= len(f.seen)
		delete(n.files, pid)
	}
}

func (n *names) forgetFiles() {
	n.files, n.ended, n.count = map[uint32]*files{}, nil, 0
	n.opened = recent[fileKey]{}
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
	if now := n.clock(); now.Sub(n.begun) > n.keep || len(n.otherThreads) >= maxOtherThreads/2 {
		n.before, n.otherThreads, n.begun = n.otherThreads, map[uint64]string{}, now
		n.met = recent[uint64]{} // whatever comes again is known again
	}
	if name, known := n.before[who]; known {
		delete(n.before, who)
		n.otherThreads[who] = name
		return false
	}
	// One that is gone has an empty name, which keeps it from being looked for again.
	comm, _ := procfile.Comm(n.path(pid) + "/task/" + strconv.Itoa(int(tid)) + "/comm")
	n.otherThreads[who] = clean(comm)
	return true
}

// open finds the name of the file that the event waited for, and reports whether it had to look.
func (n *names) open(e *event.Event) bool {
	inode := e.Args[3] & (1<<48 - 1)
	if e.Args[3] == 0 || e.Flags&event.Preempted != 0 || !n.isDescriptor(e.Func) || !n.watched[e.PID] {
		return false // of a process that has ended nothing can be found any more
	}
	key := fileKey{e.PID, uint32(e.Args[2]), inode}
	f := n.files[key.pid]
	if n.opened.has(uint64(key.pid)<<32^uint64(key.fd)^inode<<8, key) || f != nil && f.seen[key] {
		return false
	}
	if n.count >= maxObjects {
		n.forgetFiles()
		f = nil
	}
	if f == nil {
		f = &files{seen: map[fileKey]bool{}, objects: map[uint64][]string{}}
		n.files[key.pid] = f
	}
	f.seen[key] = true
	n.count++
	name := n.file(key)
	// Pipes, sockets and files count their inodes apart, and all anonymous inodes are one.
	if known := f.objects[inode]; name != "" && len(known) < maxAliases && !slices.Contains(known, name) {
		f.objects[inode] = append(known, name)
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
	out := []recording.Object{}
	for pid, f := range n.files {
		for inode, aliases := range f.objects {
			out = append(out, recording.Object{PID: pid, Inode: inode, Name: strings.Join(aliases, " or ")})
		}
	}
	return out
}

func (n *names) allOtherThreads() []recording.Thread {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]recording.Thread, 0, len(n.before)+len(n.otherThreads))
	for _, met := range []map[uint64]string{n.before, n.otherThreads} {
		for who, name := range met {
			if name != "" {
				out = append(out, recording.Thread{PID: uint32(who >> 32), TID: uint32(who), Name: name})
			}
		}
	}
	return out
}
