//go:build amd64 || arm64

package inject

import (
	"context"
	"errors"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// tracedThread returns a thread of a process that is traced; 0: none is.
func tracedThread(t *testing.T, pid int) int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		tid, _ := strconv.Atoi(task.Name())
		if s, err := readStatus(pid, tid); err == nil && s.tracer != 0 {
			return tid
		}
	}
	return 0
}

// A thread that makes no call for long is waited for, unless it has signals of its own, which would have
// to wait for us each time: then it is let go of soon.
func TestThreadWithSignalsIsLetGo(t *testing.T) {
	in := newInjector(t)
	v := start(t, "--pause", "1200000")
	pid := int(v.process.PID)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	seized, over := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	in.step = func(name string) {
		if name == "seized" {
			once.Do(func() { close(seized) })
		}
	}
	im := testImage(t)
	go func() {
		_, err := in.Load(ctx, v.process, im)
		over <- err
	}()
	<-seized
	deadline := time.Now().Add(10 * time.Second)
	for tid := tracedThread(t, pid); tid != 0; tid = tracedThread(t, pid) {
		if time.Now().After(deadline) {
			t.Fatal("the thread is still traced")
		}
		// One that is ignored: it does not end the victim's pause.
		if err := unix.Tgkill(pid, tid, unix.SIGCHLD); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if len(over) > 0 {
		t.Fatal("it called before it was let go of")
	}
	cancel()
	if err := <-over; !errors.Is(err, context.Canceled) && !errors.Is(err, ErrIdle) {
		t.Errorf("Load: %v", err)
	}
	v.unharmed()
}
