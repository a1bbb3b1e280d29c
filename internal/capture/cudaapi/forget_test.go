package cudaapi

import (
	"math"
	"os"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestWindowsOfAnEndedProcess: nobody waits until its probes come off, which takes the kernel a while, but Close; its
// windows can be asked for meanwhile.
func TestWindowsOfAnEndedProcess(t *testing.T) {
	p := &proc.Process{PID: 7}
	l := &launches{pid: 7, from: clock.Monotonic() - 1000, changed: make(chan struct{}, 1), done: make(chan struct{})}
	s := &Source{procs: map[proc.ID]*process{p.ID(): {pid: 7, launches: l}}, wanted: map[proc.ID]LaunchMode{}}
	s.Forget(p)
	for !quits(l) {
		time.Sleep(time.Millisecond)
	}
	if w := s.LaunchWindows(7, 0, math.MaxUint64); len(w) != 1 || w[0].End != "detached" {
		t.Errorf("while the probes come off the windows are %+v", w)
	}
	close(l.done) // they are off
	_ = s.detaching.Wait()
	if w := s.LaunchWindows(7, 0, math.MaxUint64); len(w) != 1 {
		t.Errorf("afterwards the windows are %+v", w)
	}
}

// TestWindowsOfEndedProcesses: those that no recording shows any more are forgotten, however many processes come and go.
func TestWindowsOfEndedProcesses(t *testing.T) {
	const each = uint64(time.Second) // from one process to the next
	s := &Source{opts: Options{Keep: time.Minute}}
	for i := range uint64(5000) {
		now := (1000 + i) * each
		s.keep(&launches{windows: []recording.GPUWindow{{PID: uint32(i), From: now - each, To: now}}}, now)
		if most := int(uint64(s.opts.Keep)/each) + 1; len(s.ended) > most {
			t.Fatalf("after %d processes %d windows are kept, want %d at most", i, len(s.ended), most)
		}
	}
	if w := s.LaunchWindows(4980, 0, math.MaxUint64); len(w) != 1 {
		t.Errorf("the windows of a process that ended a moment ago are %+v", w)
	}
}

// TestModesOfEndedProcesses: a mode that is set after Forget does not stay for ever.
func TestModesOfEndedProcesses(t *testing.T) {
	living, err := proc.Describe(os.Getpid())
	must.NoError(t, err)
	defer living.Close()
	s := &Source{procs: map[proc.ID]*process{}, wanted: map[proc.ID]LaunchMode{}}
	s.SetLaunches(living.ID(), LaunchesOff)
	for i := range uint64(100) {
		s.SetLaunches(proc.ID{PID: living.PID, StartTime: living.StartTime + 1 + i}, LaunchesWindows)
	}
	if len(s.wanted) > 2 || s.wanted[living.ID()] != LaunchesOff {
		t.Errorf("the modes of %d processes are remembered, of the living one %q", len(s.wanted), s.wanted[living.ID()])
	}
	s.Forget(living)
	if mode, known := s.wanted[living.ID()]; known {
		t.Errorf("after Forget the mode %q is remembered", mode)
	}
}

func quits(l *launches) bool {
	_, quit := l.want()
	return quit
}
