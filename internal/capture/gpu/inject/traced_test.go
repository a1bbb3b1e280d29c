//go:build amd64 || arm64

package inject

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestRefusedTraced: a process that is traced, or of which the thread that calls is, is left to its tracer, and is
// entered when that has let go.
func TestRefusedTraced(t *testing.T) {
	in := newInjector(t)
	for name, which := range map[string]int{"the first thread": 0, "the one that calls": 1} {
		t.Run(name, func(t *testing.T) {
			v := start(t)
			letGo := trace(t, v.tids()[which])
			_, err := in.Load(within(t, 5*time.Second), v.process, testImage(t))
			if !errors.Is(err, ErrTraced) || !strings.Contains(err.Error(), fmt.Sprintf("by pid %d (", os.Getpid())) ||
				HintOf(err) == "" {
				t.Errorf("%v (%s), want %v and by whom", err, HintOf(err), ErrTraced)
			}
			if v.copies() != 0 || len(v.ours()) != 0 {
				t.Error("something of ours is in it")
			}
			letGo()
			load(t, in, v, testImage(t))
			v.unharmed()
			v.finish()
		})
	}
}

// trace traces a thread until letGo is called.
func trace(t *testing.T, tid int) (letGo func()) {
	t.Helper()
	seized, over, done := make(chan error), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		onOwnThread(func() { // whose end is that of the tracing
			_, err := seize(tid)
			seized <- err
			<-over
		})
	}()
	letGo = sync.OnceFunc(func() {
		close(over)
		<-done
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			if s, err := readStatus(tid, tid); err != nil || s.tracer == 0 {
				return
			}
			if time.Now().After(end) {
				t.Error("the thread is still traced")
				return
			}
		}
	})
	t.Cleanup(letGo)
	if err := <-seized; err != nil {
		t.Fatal(err)
	}
	return letGo
}

// TestWhoDenies: who forbids ptrace is named, from the likeliest on, with what to do.
func TestWhoDenies(t *testing.T) {
	for _, c := range []struct {
		yama, label  string
		filtered     bool
		detail, hint string
	}{
		{
			yama: "3\n", label: "docker-default (enforce)", filtered: true, detail: "kernel.yama.ptrace_scope = 3",
			hint: "inferscope run",
		},
		{yama: "1\n", filtered: true, detail: "seccomp filter of this daemon's container", hint: "SYS_PTRACE"},
		{
			yama: "1\n", label: "docker-default (enforce)", detail: "the process is docker-default (enforce)",
			hint: "policy",
		},
		{label: "system_u:system_r:container_t:s0:c1,c2", detail: "container_t", hint: "policy"},
		{yama: "1\n", detail: "", hint: "CAP_SYS_PTRACE"},
	} {
		detail, hint := whoDenies(c.yama, c.filtered, c.label)
		if !strings.Contains(detail, c.detail) || (detail == "") != (c.detail == "") ||
			!strings.Contains(hint, c.hint) {
			t.Errorf("%+v: %q, %q", c, detail, hint)
		}
	}
	for text, want := range map[string]string{
		"unconfined\n": "", "kernel": "", "": "", "docker-default (enforce)\n": "docker-default (enforce)",
		"system_u:system_r:container_t:s0\x00":                      "system_u:system_r:container_t:s0",
		"unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023\x00": "",
	} {
		if got := confinement(text); got != want {
			t.Errorf("%q confines as %q, want %q", text, got, want)
		}
	}
}
