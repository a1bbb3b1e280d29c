package proc

import (
	"cmp"
	"os"
	"slices"
	"strconv"

	"github.com/inferscope/inferscope/internal/capture/procfile"
	"github.com/inferscope/inferscope/internal/recording"
)

const (
	// maxThreads bounds the names kept of a process: 4,096 are about 400 kB.
	maxThreads = 4096
)

// readThreads adds the names of e's present threads to those already known. What
// was read of a process that has ended meanwhile may be another's and is dropped.
func (fs *procfs) readThreads(e *entry) {
	if !e.p.Alive() {
		return
	}
	dir, err := os.Open(fs.path(e.p.PID, "task"))
	if err != nil {
		return
	}
	defer dir.Close()
	tids, err := dir.Readdirnames(maxThreads)
	if err != nil {
		return
	}
	names := make(map[uint32]string, len(tids))
	for _, name := range tids {
		tid, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			continue
		}
		if comm, err := procfile.Comm(fs.path(e.p.PID, "task/"+name+"/comm")); err == nil {
			names[uint32(tid)] = comm
		}
	}
	if e.p.Alive() {
		e.addThreads(names)
	}
}

// addThreads keeps the living and, while there is room, the dead.
func (e *entry) addThreads(names map[uint32]string) {
	for tid, name := range e.threads {
		if _, ok := names[tid]; !ok && len(names) < maxThreads {
			names[tid] = name
		}
	}
	e.threads = names
}

// renewThreads reads the names again if the number of threads has changed, which
// the link count of the directory tells for one system call.
func (fs *procfs) renewThreads(e *entry) {
	links, err := linkCount(fs.path(e.p.PID, "task"))
	if err != nil || links == e.tasks {
		return
	}
	e.tasks = links
	fs.readThreads(e)
}

func (e *entry) threadList() []recording.Thread {
	list := make([]recording.Thread, 0, len(e.threads))
	for tid, name := range e.threads {
		list = append(list, recording.Thread{PID: e.p.PID, TID: tid, Name: name})
	}
	slices.SortFunc(list, func(a, b recording.Thread) int { return cmp.Compare(a.TID, b.TID) })
	return list
}
