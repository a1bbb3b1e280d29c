//go:build amd64 || arm64

package inject

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/debugger"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// gdb and gcore work on a process before an image is in it and after.
func TestDebuggers(t *testing.T) {
	in, im := newInjector(t), testImage(t)
	v := start(t, "--threads", "2", "--pause", "100")
	look := func(when string) {
		t.Helper()
		libraries := debugger.Run(t, v.process.PID, "gdb", "--batch", "-nx", "-ex", "info sharedlibrary",
			"-ex", "thread apply all backtrace 3", "-p")
		if !strings.Contains(libraries, "libcuda.so.1") || strings.Contains(libraries, "rror while") {
			t.Errorf("%s, gdb says:\n%s", when, libraries)
		}
		core := filepath.Join(t.TempDir(), "core")
		debugger.Run(t, v.process.PID, "gcore", "-o", core)
		if info, err := os.Stat(core + "." + strconv.Itoa(int(v.process.PID))); err != nil || info.Size() == 0 {
			t.Errorf("%s, gcore wrote nothing: %v", when, err)
		}
		v.unharmed()
	}
	look("before")
	load(t, in, v, im)
	look("after")
	if out := debugger.Run(t, v.process.PID, "gdb", "--batch", "-nx", "-ex", "info sharedlibrary", "-p"); strings.Contains(
		out,
		"self/fd",
	) {
		t.Errorf("gdb knows the image by the name of a file of its own:\n%s", out)
	}
	load(t, in, v, im)
	look("after it was started again")
	v.finish()
}

// A debugger that comes while a thread is traced, and makes no call for long, is given way to.
func TestDebuggerMeanwhile(t *testing.T) {
	needs.Long(t)
	in, im := newInjector(t), testImage(t)
	v := start(t, "--threads", "2", "--pause", "5000000")
	seized, once := make(chan struct{}), sync.Once{}
	in.step = func(name string) {
		if name == "seized" {
			once.Do(func() { close(seized) })
		}
	}
	refused := make(chan error, 1)
	go func() {
		r, err := in.Load(within(t, 40*time.Second), v.process, im)
		if err == nil {
			r.FD.Close()
		}
		refused <- err
	}()
	<-seized
	began := time.Now()
	if out := debugger.Run(t, v.process.PID, "gdb", "--batch", "-nx", "-ex", "info threads", "-p"); strings.Count(
		out,
		"already traced",
	) > 100 {
		t.Errorf("gdb tried %d times to trace the thread that is traced", strings.Count(out, "already traced"))
	}
	t.Logf("gdb took %v", time.Since(began))
	if err := <-refused; !errors.Is(err, ErrTraced) {
		t.Errorf("%v, want %v", err, ErrTraced)
	}
	v.unharmed()
	v.finish()
}
