//go:build amd64 || arm64

package inject

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestHelperInjector(t *testing.T) {
	in, im := newHelperInjector(t), testImage(t)
	v := start(t, "--threads", "3", "--alt")
	files, own := v.descriptors(), ownFiles(t)
	for i := range 3 {
		r, h := load(t, in, v, im)
		if int(h.Starts) != i+1 || int(h.TID) != r.Thread || r.Started != (i > 0) || r.Stopped <= 0 ||
			!slices.Contains(r.Steps, Step{called, r.At}) {
			t.Errorf("load %d: hello %+v of result %+v", i, h, r)
		}
		v.unharmed()
	}
	if n := v.descriptors(); n != files {
		t.Errorf("the victim has %d files open, %d before", n, files)
	}
	// helpers that are just ending
	for deadline := time.Now().Add(2 * lastWord); ownFiles(t) != own; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("this process has %d files open, %d before", ownFiles(t), own)
		}
	}
	v.finish()
}

func ownFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// A HelperInjector gives the same reason as an Injector if it refuses a process.
func TestHelperInjectorRefuses(t *testing.T) {
	in, im := newHelperInjector(t), testImage(t)
	v := start(t, "--handle", "23,28,17,18")
	inside, apart := refusal(t, newInjector(t), v, im), refusal(t, in, v, im)
	if apart.Error() != inside.Error() || HintOf(apart) != HintOf(inside) || HintOf(apart) == "" ||
		!errors.Is(apart, errSignal) {
		t.Errorf("%v (%s), want %v (%s)", apart, HintOf(apart), inside, HintOf(inside))
	}
	v.finish()

	idle := start(t, "--pause", "20000000")
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	if _, err := in.Load(ctx, idle.process, im); !errors.Is(err, ErrIdle) {
		t.Errorf("a process that does nothing: %v", err)
	}
}

func refusal(t *testing.T, in loader, v *victim, im Image) error {
	t.Helper()
	_, err := in.Load(within(t, 20*time.Second), v.process, im)
	if err == nil {
		t.Fatal("it was not refused")
	}
	return err
}

// A caller that gives up is answered soon.
func TestHelperInjectorCancelled(t *testing.T) {
	in, im := newHelperInjector(t), testImage(t)
	v := start(t, "--pause", "20000000")
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(300*time.Millisecond, cancel)
	began := time.Now()
	if _, err := in.Load(ctx, v.process, im); err == nil || time.Since(began) > lastWord+2*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

// A helper that dies is an error, and harms nobody.
func TestHelperInjectorEnds(t *testing.T) {
	needRoot(t)
	im := testImage(t)
	v := start(t)
	in := newHelperInjector(t)
	in.command = []string{"/bin/false"}
	if _, err := in.Load(within(t, 20*time.Second), v.process, im); !errors.Is(err, errNoAnswer) &&
		!errors.Is(err, unix.EPIPE) {
		t.Errorf("a helper that ends at once: %v", err)
	}
	in.command = []string{"/no/such/file"}
	if _, err := in.Load(within(t, 20*time.Second), v.process, im); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no helper: %v", err)
	}
	v.unharmed()
	v.finish()
}

// A helper's answer is read as what a target may have written.
func TestAnswer(t *testing.T) {
	for reason := range len(reasons()) + 2 {
		a := answer{Error: "pid 7: so it is", Reason: reason, Hint: "do this"}
		err := a.err()
		known := reason >= 1 && reason <= len(reasons())
		if err.Error() != a.Error || known && (!errors.Is(err, reasons()[reason-1]) || HintOf(err) != "do this") ||
			!known && HintOf(err) != "" {
			t.Errorf("reason %d: %v (%s)", reason, err, HintOf(err))
		}
	}
	for i, reason := range reasons() {
		var a answer
		a.fail(fmt.Errorf("pid 7: %w", &Refusal{Reason: reason, Detail: "d", Hint: "h", Cause: unix.EPERM}))
		if a.Reason != i+1 || a.Hint != "h" || !strings.Contains(a.Error, "d: operation not permitted") {
			t.Errorf("%v: %+v", reason, a)
		}
	}
}
