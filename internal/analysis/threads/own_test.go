package threads

import (
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
)

// InferScope's own threads are those that the daemon marks, whatever programs call theirs.
func TestOwnThreads(t *testing.T) {
	rec := &recording.Recording{Meta: recording.Meta{
		Processes: []recording.Process{{PID: 1}},
		Threads:   []recording.Thread{{PID: 1, TID: 1, Name: "x", Own: true}},
		OtherThreads: []recording.Thread{
			{PID: 2, TID: 2, Name: "inferscoped", Own: true},
			{PID: 3, TID: 3, Name: "inferscoped of InferScope itself"},
		},
	}}
	w := NewWaits(rec)
	for pid, own := range map[uint32]bool{1: false, 2: true, 3: false} {
		if got := w.Who(pid, pid).Own; got != own {
			t.Errorf("process %d is InferScope's own: %v", pid, got)
		}
	}
}
