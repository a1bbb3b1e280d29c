package timeline

import (
	"cmp"
	"math"
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
)

// processes finds the process that had a pid at a time.
type processes struct {
	t     *Timeline
	byPID map[uint32][]int32 // oldest first
}

func newProcesses(t *Timeline) *processes {
	t.Processes = make([]Process, len(t.Rec.Meta.Processes))
	p := &processes{t: t, byPID: map[uint32][]int32{}}
	for i, one := range t.Rec.Meta.Processes {
		t.Processes[i] = Process{Process: one, Listed: true}
		p.byPID[one.PID] = append(p.byPID[one.PID], int32(i))
	}
	for _, list := range p.byPID {
		slices.SortStableFunc(list,
			func(x, y int32) int { return cmp.Compare(t.Processes[x].Born, t.Processes[y].Born) })
	}
	return p
}

// find returns the process that had the pid at time ts, and for which stretch of time (both
// ends inclusive) it had it; None where no process is known that can have had it. The end of a process decides, not the
// beginning of the next: Died is exact, and Born is rounded down by up to 10 ms.
func (p *processes) find(pid uint32, ts uint64) (process int32, from, to uint64) {
	for _, i := range p.byPID[pid] {
		one := &p.t.Processes[i]
		if one.Died == 0 {
			return i, from, math.MaxUint64
		}
		if ts <= one.Died {
			return i, from, one.Died
		}
		from = one.Died + 1
	}
	return None, from, math.MaxUint64
}

// process is find, and adds a process where none is known. It may not run beside find.
func (p *processes) process(pid uint32, ts uint64) int32 {
	process, from, _ := p.find(pid, ts)
	if process != None {
		return process
	}
	process = int32(len(p.t.Processes))
	p.t.Processes = append(p.t.Processes, Process{Process: recording.Process{PID: pid, Born: from}})
	p.byPID[pid] = append(p.byPID[pid], process)
	return process
}
