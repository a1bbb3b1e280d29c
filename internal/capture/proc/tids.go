package proc

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/inferscope/inferscope/internal/capture/procfile"
)

// Bounds of reading threads.
const (
	maxTIDs      = 1 << 16
	maxNSStatus  = 4 << 10
	rescanPeriod = 250_000_000 // ns; a target that makes ids up costs four scans a second
)

// TIDs translates thread ids from a process's own pid namespace. It is used by one goroutine.
type TIDs struct {
	process *Process
	plain   bool // both namespaces are one
	hosts   map[uint32]uint32
	scanned uint64 // ns
}

// NewTIDs makes a translator for the threads of p.
func NewTIDs(p *Process) *TIDs {
	return &TIDs{process: p, plain: p.NSPID == p.PID, hosts: map[uint32]uint32{}}
}

// Host returns the thread's id in the initial namespace; 0 where it cannot be found, which
// is so for a thread that ended before it was looked for. now is in ns.
func (t *TIDs) Host(tid uint32, now uint64) uint32 {
	if t.plain {
		return tid
	}
	host, ok := t.hosts[tid]
	if !ok && now-t.scanned > rescanPeriod {
		t.scanned = now
		t.scan()
		host = t.hosts[tid]
	}
	return host
}

// OwnTID returns the id that a thread of p, which the initial namespace counts as host, has in p's own; false where it
// has ended.
func OwnTID(p *Process, host uint32) (uint32, bool) {
	own, ok := innermost(fmt.Sprintf("/proc/%d/task/%d/status", p.PID, host))
	return own, ok && p.Alive()
}

// scan reads the threads that there are now; those that have ended stay known while there is room.
func (t *TIDs) scan() {
	dir, err := os.Open(fmt.Sprintf("/proc/%d/task", t.process.PID))
	if err != nil {
		return
	}
	defer dir.Close()
	if !t.process.Alive() {
		return
	}
	list, _ := dir.Readdirnames(maxTIDs) // what could be read is used
	if len(t.hosts)+len(list) > 2*maxTIDs {
		clear(t.hosts)
	}
	for _, name := range list {
		host, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			continue
		}
		if own, ok := innermost(fmt.Sprintf("/proc/%d/task/%d/status", t.process.PID, host)); ok {
			t.hosts[own] = uint32(host)
		}
	}
}

// innermost returns the last number of the NSpid line of a status file.
func innermost(path string) (uint32, bool) {
	text, err := procfile.ReadStatus(path)
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(text.Field("NSpid"))
	if len(fields) == 0 {
		return 0, false
	}
	tid, err := strconv.ParseUint(fields[len(fields)-1], 10, 32)
	return uint32(tid), err == nil
}
