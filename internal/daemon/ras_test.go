package daemon

import (
	"context"
	"errors"
	"os"
	"testing"

	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/ras"
	"github.com/inferscope/inferscope/internal/recording"
)

// withNCCL is a view of one process, which counts as 7 in its own pid namespace and has a library mapped.
func withNCCL(library string) *view {
	return &view{
		pid: 10, members: map[uint32]bool{10: true},
		entries:   []entry{{process: &proc.Process{PID: 10, NSPID: 7}}},
		libraries: []recording.Library{{PID: 10, Path: "/usr/lib/" + library}},
	}
}

// newTestRAS is a reader that reaches every process.
func newTestRAS(clock clockFunc) *rasReader {
	r := newRASReader(zap.NewNop(), clock)
	r.reaches = func(uint32) bool { return true }
	return r
}

// TestRASStaysOnTheHost: a target names the address in its environment, and sends the daemon to no other host by that;
// nor is a process asked that has another loopback.
func TestRASStaysOnTheHost(t *testing.T) {
	for address, want := range map[string]bool{
		ras.Address: true, "127.0.0.2:1": true, "[::1]:28028": true, ":28028": true,
		"192.0.2.1:28028": false, "example.org:28028": false, "localhost.example.org:80": false, "0.0.0.0:1": false, "": false,
	} {
		if got := loopback(address); got != want {
			t.Errorf("%q: %v", address, got)
		}
	}
	r := newTestRAS(func() uint64 { return second })
	r.reaches = func(uint32) bool { return false }
	r.read = func(context.Context, string) (*recording.RAS, error) {
		t.Error("asked in another network namespace")
		return nil, errors.New("nobody there")
	}
	if got := r.of(t.Context(), withNCCL("libnccl.so.2")); got != nil {
		t.Errorf("%+v", got)
	}
	if pid := uint32(os.Getpid()); !sameNetwork(pid) {
		t.Error("this process is not in its own network")
	}
}

// TestRASOfOwnJobs: a target is told of communicators that it has ranks in, by either number of a process, and an
// answer is used again for some seconds.
func TestRASOfOwnJobs(t *testing.T) {
	now, asked := uint64(0), 0
	r := newTestRAS(func() uint64 { return now })
	with := func(hash string, pid uint32) recording.RASCommunicator {
		return recording.RASCommunicator{Hash: hash, Ranks: []recording.RASRank{{PID: pid}, {PID: 99}}}
	}
	r.read = func(_ context.Context, address string) (*recording.RAS, error) {
		if asked++; address != ras.Address {
			t.Errorf("asked at %s", address)
		}
		missing := recording.RASCommunicator{Hash: "missing", Missing: []recording.RASRank{{PID: 10}}}
		return &recording.RAS{
			Version: "2.28.9", Communicators: []recording.RASCommunicator{with("own", 7), with("foreign", 8), missing},
		}, nil
	}
	for _, at := range []uint64{second, 5 * second, 7 * second} {
		now = at
		got := r.of(t.Context(), withNCCL("libnccl.so.2"))
		if got == nil || len(got.Communicators) != 2 || got.Communicators[0].Hash != "own" ||
			got.Communicators[1].Hash != "missing" || got.Version != "2.28.9" {
			t.Fatalf("at %d: %+v", at, got)
		}
	}
	if asked != 2 {
		t.Errorf("asked %d times in six seconds, want 2", asked)
	}
}

// TestNoRASIsAsked: nothing is asked for a target without NCCL or one that has ended; who does not answer is no error,
// and is not asked again at once.
func TestNoRASIsAsked(t *testing.T) {
	asked := 0
	r := newTestRAS(func() uint64 { return second })
	r.read = func(context.Context, string) (*recording.RAS, error) {
		asked++
		return nil, errors.New("connection refused")
	}
	ended := withNCCL("libnccl.so.2")
	ended.ended = 1
	for _, v := range []*view{withNCCL("libcuda.so.1"), ended} {
		if got := r.of(t.Context(), v); got != nil || asked != 0 {
			t.Errorf("%+v after %d questions", got, asked)
		}
	}
	for range 2 {
		if got := r.of(t.Context(), withNCCL("libnccl.so.2")); got != nil || asked != 1 {
			t.Errorf("%+v after %d questions", got, asked)
		}
	}
}
