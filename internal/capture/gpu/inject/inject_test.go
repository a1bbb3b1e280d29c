//go:build amd64 || arm64

package inject

import (
	"context"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
)

func newInjector(tb testing.TB) *Injector {
	tb.Helper()
	needRoot(tb)
	in, err := New(Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := in.Wait(); err != nil {
			tb.Error(err)
		}
	})
	return in
}

func within(tb testing.TB, d time.Duration) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), d)
	tb.Cleanup(cancel)
	return ctx
}

// loader is an Injector or a HelperInjector.
type loader interface {
	Load(ctx context.Context, p *proc.Process, image Image) (Result, error)
}

func newHelperInjector(tb testing.TB) *HelperInjector {
	tb.Helper()
	needRoot(tb)
	linkHolder, err := uprobe.StartLinkHolder([]string{"/proc/self/exe"})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := linkHolder.Close(); err != nil {
			tb.Error(err)
		}
		<-linkHolder.Gone()
	})
	a, err := NewHelperInjector([]string{"/proc/self/exe"}, Options{LinkHolder: linkHolder})
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

// load brings the image in and waits for its hello.
func load(tb testing.TB, in loader, v *victim, im Image) (Result, hello) {
	tb.Helper()
	limit := 30 * time.Second
	if os.Getenv("INFERSCOPE_TEST_SLOW") != "" { // an emulated processor
		limit *= 6
	}
	ctx := within(tb, limit)
	r, err := in.Load(ctx, v.process, im)
	if err != nil {
		tb.Fatalf("load: %v (%s); victim's stderr: %s", err, HintOf(err), v.stderr.String())
	}
	defer r.FD.Close()
	h, err := greet(ctx, v, im, &r)
	if err != nil {
		tb.Fatalf("no hello: %v; victim's stderr: %s", err, v.stderr.String())
	}
	return r, h
}

func TestLoad(t *testing.T) {
	in := newInjector(t)
	im := testImage(t)
	for _, threads := range []int{1, 8, 64} {
		t.Run(strconv.Itoa(threads)+" threads", func(t *testing.T) {
			v := start(t, "--threads", strconv.Itoa(threads), "--alt")
			files := v.descriptors()
			r, h := load(t, in, v, im)
			t.Logf("stopped %v, held %v", r.Stopped, time.Duration(h.Left-r.At))
			if h.Starts != 1 || int(h.TID) != r.Thread || r.Started {
				t.Errorf("hello %+v of result %+v", h, r)
			}
			v.unharmed()
			r, h = load(t, in, v, im)
			if h.Starts != 2 || !r.Started || v.copies() != 1 {
				t.Errorf("second load: hello %+v of result %+v, %d copies mapped", h, r, v.copies())
			}
			v.unharmed()
			if n := v.descriptors(); n != files {
				t.Errorf("%d files open, %d before", n, files)
			}
			v.finish()
		})
	}
}

// The image is heard while the probes are still coming off, however long that takes.
func TestProbesComeOffLater(t *testing.T) {
	in := newInjector(t)
	heard := make(chan struct{})
	in.step = func(name string) {
		if name == "coming off" {
			<-heard
		}
	}
	v := start(t)
	load(t, in, v, testImage(t))
	close(heard)
	if err := in.Wait(); err != nil {
		t.Error(err)
	}
	v.unharmed()
	v.finish()
}

// The same through perf events, as on kernels before 6.6.
func TestLoadPerf(t *testing.T) {
	needRoot(t)
	in, err := New(Options{Mode: uprobe.Perf})
	if err != nil {
		t.Fatal(err)
	}
	im := testImage(t)
	v := start(t, "--threads", "4")
	for range 2 {
		load(t, in, v, im)
		v.unharmed()
	}
	v.finish()
}

// An image that takes long holds one thread, and nobody else; signals to that thread
// wait, and all come.
func TestSlowImage(t *testing.T) {
	in := newInjector(t)
	im := testImage(t)
	im.Params = (&params{HelloAt: uint64(helloAt(im.Bytes)), SleepUS: 1_500_000}).bytes()
	v := start(t, "--threads", "2", "--handle", "10")
	r, err := in.Load(within(t, 10*time.Second), v.process, im)
	if err != nil {
		t.Fatal(err)
	}
	defer r.FD.Close()
	before, _, _ := v.count()
	for range 3 { // one is pending, the others are the same one
		if err := unix.Tgkill(int(v.process.PID), r.Thread, unix.SIGUSR1); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, handled := v.count(); handled != 0 {
		t.Error("the signal was handled in the middle of the image's code")
	}
	h, err := greet(within(t, 5*time.Second), v, im, &r)
	if err != nil {
		t.Fatal(err)
	}
	if !has(h.Blocked, unix.SIGUSR1) || has(h.Blocked, unix.SIGSEGV) {
		t.Errorf("blocked meanwhile: %#x", h.Blocked)
	}
	if after, _, _ := v.count(); after == before {
		t.Error("the other thread did not go on")
	}
	v.unharmed()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, _, handled := v.count(); handled == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the signal was lost")
		}
	}
	v.finish()
}

// A thread that is traced, and does not call CUDA yet, handles its signals as ever.
func TestTracedThreadHandlesItsSignals(t *testing.T) {
	in := newInjector(t)
	v := start(t, "--handle", "10", "--pause", "150000")
	sent, handled := 0, []int{}
	in.step = func(name string) {
		switch name {
		case "seized":
			sent++
			if err := unix.Kill(int(v.process.PID), unix.SIGUSR1); err != nil {
				t.Error(err)
			}
		case "signalled":
			_, _, n := v.count()
			handled = append(handled, n)
		}
	}
	load(t, in, v, testImage(t))
	if sent != 1 || len(handled) != 2 || handled[0] != 1 {
		t.Errorf("traced %d times; %v signals were handled at the stops, want 1 at the first", sent, handled)
	}
	v.unharmed()
	v.finish()
}
