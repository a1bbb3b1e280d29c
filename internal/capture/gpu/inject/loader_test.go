//go:build amd64 || arm64

package inject

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// limitMemory lets a victim map no more than it has mapped now, or as much as it likes.
func (v *victim) limitMemory(on bool) {
	v.tb.Helper()
	limit := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if on {
		var pages uint64
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", v.process.PID))
		if err == nil {
			_, err = fmt.Sscan(string(text), &pages)
		}
		if err != nil {
			v.tb.Fatal(err)
		}
		limit.Cur = pages * uint64(os.Getpagesize())
	}
	if err := unix.Prlimit(int(v.process.PID), unix.RLIMIT_AS, &limit, nil); err != nil {
		v.tb.Fatal(err)
	}
}

// The memory file can be made, and the loader may not map it, as where a security module forbids that (here: a limit of
// address space). The victim goes on, it is said how far the image came, and once it may be mapped the same file
// serves.
func TestTheLoaderMayNotMapIt(t *testing.T) {
	in := newInjector(t)
	im := testImage(t)
	v := start(t)
	files := v.descriptors()
	v.limitMemory(true)
	r, err := in.Load(within(t, 30*time.Second), v.process, im)
	if err != nil {
		t.Fatal(err)
	}
	_, err = greet(within(t, 2*time.Second), v, im, &r)
	_ = r.FD.Close()
	if !errors.Is(err, ErrNoAnswer) || !strings.Contains(err.Error(), "not mapped") || HintOf(err) == "" {
		t.Errorf("%v (%s), want %v", err, HintOf(err), ErrNoAnswer)
	}
	v.unharmed()
	if v.copies() != 0 {
		t.Error("an image is mapped")
	}
	v.limitMemory(false)
	load(t, in, v, im)
	v.unharmed()
	if n := v.descriptors(); n != files {
		t.Errorf("%d files open, %d before", n, files)
	}
	v.finish()
}
