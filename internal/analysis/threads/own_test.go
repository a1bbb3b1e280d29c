package threads

import (
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
)

// InferScope's own threads are known by what the daemon put behind their names, which no program's thread can have.
func TestOwnThreads(t *testing.T) {
	rec := &recording.Recording{Meta: recording.Meta{
		Processes: []recording.Process{{PID: 1}},
		Threads:   []recording.Thread{{PID: 1, TID: 1, Name: "x" + recording.OwnMark}},
		OtherThreads: []recording.Thread{
			{PID: 2, TID: 2, Name: "inferscoped" + recording.OwnMark},
			{PID: 3, TID: 3, Name: "inferscoped"},
		},
	}}
	w := NewWaits(rec)
	for pid, own := range map[uint32]bool{1: false, 2: true, 3: false} {
		if got := w.Who(pid, pid).Own; got != own {
			t.Errorf("process %d is InferScope's own: %v", pid, got)
		}
	}
	if len(recording.OwnMark) < 16 {
		t.Error("a thread can be named so")
	}
}
