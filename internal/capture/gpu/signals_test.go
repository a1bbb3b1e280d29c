package gpu

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/gpu/quiesce"
	"github.com/inferscope/inferscope/internal/capture/proc"
)

// TestSignalsThatAreTaken: this process handles all signals, as Go programs do. Where its agent cannot hand SIGURG on,
// no window opens, with the reason.
func TestSignalsThatAreTaken(t *testing.T) {
	q := &session{process: &proc.Process{PID: uint32(os.Getpid())}, ring: &ring{mem: make([]byte, ringData)}}
	q.gates[quiesce.Launches].gate, q.gates[quiesce.Calls].gate = &quiesce.Gate{}, &quiesce.Gate{}
	s := &Source{}
	q.ring.store32(ringGatesLost, 1)
	s.announce(q)
	if got := ungated(q); q.ring.load32(ringGate) == 0 || q.ring.load32(ringGatesLost) != 0 || got != "" {
		t.Fatalf("signals %#x, lost %d, %q", q.ring.load32(ringGate), q.ring.load32(ringGatesLost), got)
	}
	q.ring.store32(ringAsked, askTaken)
	s.announce(q)
	if got := ungated(q); got != "" {
		t.Errorf("what may have been said of other signals is taken for a refusal of these: %q", got)
	}
	q.ring.store32(ringAsked, askIn)
	s.announce(q)
	q.ring.store32(ringAsked, askTaken)
	s.announce(q)
	for range 2 { // it stays so when the agent asks no more
		if got := ungated(q); !strings.Contains(got, "handles SIGURG or SIGWINCH itself") {
			t.Errorf("the reason is %q", got)
		}
		q.ring.store32(ringAsked, 0)
		s.announce(q)
	}
}

// TestSignalThatIsTakenLater: where the target comes to handle one of the signals, they are chosen anew, and windows
// open.
func TestSignalThatIsTakenLater(t *testing.T) {
	q := &session{process: &proc.Process{PID: uint32(os.Getpid())}, ring: &ring{mem: make([]byte, ringData)}}
	q.gates[quiesce.Launches].gate, q.gates[quiesce.Calls].gate = &quiesce.Gate{}, &quiesce.Gate{}
	q.arming.launches, q.arming.calls = unix.SIGWINCH, unix.SIGURG // as chosen when SIGWINCH alone was handled
	s := &Source{}
	s.announce(q)
	q.ring.store32(ringAsked, askTaken)
	for range 3 { // looks before the agent asks again
		s.announce(q)
		if got := ungated(q); got != "" || q.arming.launches != unix.SIGURG {
			t.Fatalf("signal %v, %q", q.arming.launches, got)
		}
	}
}

// TestNoGatesYet: an agent may have kept a subscription under the last daemon. Until the gates of this one are up it
// must not end it beside threads that nothing holds: it is told that there are none.
func TestNoGatesYet(t *testing.T) {
	gate := func(*proc.Process, quiesce.Kind) (*quiesce.Gate, error) { return nil, unix.ENOSYS }
	for _, c := range []struct {
		name string
		gate func(*proc.Process, quiesce.Kind) (*quiesce.Gate, error)
		was  uint32
		want uint32
	}{
		{"new ring", gate, 0, 1},
		{"ring of the last daemon", gate, 0x1c0017, 0},
		{"no gates in this daemon", nil, 0, 0},
	} {
		opts := Options{Gate: c.gate}
		s := &Source{opts: opts}
		r := &ring{mem: make([]byte, ringData)}
		r.store32(ringGate, c.was)
		s.withoutGatesYet(r)
		if got := r.load32(ringGatesLost); got != c.want {
			t.Errorf("%s: gates lost %d, want %d", c.name, got, c.want)
		}
	}
}
