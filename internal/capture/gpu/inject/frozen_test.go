//go:build amd64 || arm64

package inject

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/clock"
)

// A helper that is frozen at any moment: no thread of the target is held for longer than the kernel lets the helper
// be frozen, and the target goes on as it was.
func TestFrozenHelper(t *testing.T) {
	t.Run("SIGSTOP", func(t *testing.T) {
		frozenHelpers(t, 40, "200", func(pid int) { _ = unix.Kill(pid, unix.SIGSTOP) }) // it may have ended
	})
	t.Run("cgroup", func(t *testing.T) {
		root := t.TempDir()
		if err := unix.Mount("none", root, "cgroup2", 0, ""); err != nil {
			t.Skip("needs root and cgroup2: ", err)
		}
		group := filepath.Join(root, "inferscope-test-"+strconv.Itoa(os.Getpid()))
		t.Cleanup(func() { _, _ = unix.Rmdir(group), unix.Unmount(root, 0) })
		if err := os.Mkdir(group, 0o755); err != nil {
			t.Skip("needs root and cgroup2: ", err)
		}
		if _, err := os.Stat(group + "/cgroup.freeze"); err != nil {
			t.Skip("needs the freezer of cgroup2 (Linux 5.2): ", err)
		}
		frozenHelpers(t, 30, "10000", func(pid int) {
			_ = os.WriteFile(group+"/cgroup.freeze", []byte("0"), 0)
			if os.WriteFile(group+"/cgroup.procs", []byte(strconv.Itoa(pid)), 0) == nil {
				_ = os.WriteFile(group+"/cgroup.freeze", []byte("1"), 0)
			}
		})
	})
}

// frozenHelpers brings images into a victim that pauses for so many microseconds between its calls.
func frozenHelpers(t *testing.T, n int, pause string, freeze func(pid int)) {
	in, im := newHelperInjector(t), testImage(t)
	if s := os.Getenv("INFERSCOPE_TEST_FREEZES"); s != "" {
		n, _ = strconv.Atoi(s)
	}
	v := start(t, "--threads", "2", "--alt", "--handle", "23", "--pause", pause)
	held, longest := 0, time.Duration(0)
	for range n {
		done := make(chan struct{})
		go func() {
			defer close(done)
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			if r, err := in.Load(ctx, v.process, im); err == nil {
				r.FD.Close()
			}
		}()
		if took := v.freezeTracer(done, freeze); took > 0 {
			held++
			longest = max(longest, took)
		}
		<-done
		v.unharmed()
	}
	t.Logf("a thread was held by %d of %d frozen helpers, for %v at the longest", held, n, longest)
	if held == 0 {
		t.Error("no thread was ever held by a frozen helper: nothing was tested")
	}
	if limit := maxFrozen + 50*time.Millisecond; longest > limit { // and what a busy machine takes to let it go
		t.Errorf("a thread was held for %v by a frozen helper, want %v at most", longest, limit)
	}
	load(t, in, v, im) // it still works
	v.unharmed()
	v.finish()
}

// freezeTracer waits until somebody traces the victim, freezes that at a random moment after, and returns for how long
// a thread of the victim was held from then on; 0: none was.
func (v *victim) freezeTracer(done <-chan struct{}, freeze func(pid int)) (took time.Duration) {
	v.tb.Helper()
	tracer := 0
	for tracer == 0 {
		select {
		case <-done:
			return 0
		default:
			tracer = v.tracer()
		}
	}
	time.Sleep(time.Duration(rand.Int64N(int64(600 * time.Microsecond))))
	freeze(tracer)
	since := clock.Monotonic()
	for clock.Monotonic()-since < uint64(10*time.Second) {
		if v.tracer() != tracer { // nobody, or the next helper
			return took
		}
		if strings.Contains(v.held(), "state t") {
			took = time.Duration(clock.Monotonic() - since)
		}
	}
	v.tb.Fatalf("after 10 s: %s", v.held())
	return 0
}

// tracer returns the process that traces a thread of the victim; 0: none does.
func (v *victim) tracer() int {
	v.tb.Helper()
	for _, tid := range v.tids() {
		s, err := readStatus(int(v.process.PID), tid)
		if err != nil || s.tracer == 0 {
			continue
		}
		if of, err := readStatus(int(s.tracer), int(s.tracer)); err == nil && of.tgid != 0 &&
			of.tgid != uint32(os.Getpid()) {
			return int(of.tgid)
		}
	}
	return 0
}
