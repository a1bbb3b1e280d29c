package profile_test

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/profile"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// With too few file descriptors some threads are not sampled; the source says so and goes on.
func TestTooManyThreads(t *testing.T) {
	needs.Root(t, "it samples other processes")
	v := start(t, buildBusy(t), "many")
	v.tid(t, "main")
	p, err := proc.Describe(int(v.pid()))
	must.NoError(t, err)
	defer p.Close()
	restore := allowFiles(t, 40)
	s, err := profile.New(profile.PerThread(profile.Options{Hz: 199, OwnOnly: true}))
	restore()
	must.NoError(t, err)
	defer s.Close()
	if err = s.Follow(p); err == nil || !strings.Contains(err.Error(), "limit of open files") {
		t.Fatalf("following 41 threads with 20 descriptors: %v", err)
	}
	for _, l := range s.Losses() {
		if l.Reason == loss.ThreadUnsampled {
			if l.Count != 21 {
				t.Errorf("%d threads are not sampled", l.Count)
			}
			return
		}
	}
	t.Errorf("no loss says so: %v", s.Losses())
}

// allowFiles lets this process open so many files, until the returned function is called.
func allowFiles(t *testing.T, n uint64) (restore func()) {
	t.Helper()
	var before unix.Rlimit
	must.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	few := before
	few.Cur = n
	must.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	return func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	}
}
