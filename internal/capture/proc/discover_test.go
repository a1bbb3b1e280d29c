package proc

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

func TestDriverLibraries(t *testing.T) {
	for base, want := range map[string]bool{
		"libcuda.so.1": true, "libcuda.so.580.159.03": true, "libamdhip64.so.6": true,
		"libcudart.so.12": false, "libcudadebugger.so.1": false, "libnvidia-ml.so.1": false, "libc.so.6": false,
	} {
		if isDriver(base) != want {
			t.Errorf("%s: %v, want %v", base, !want, want)
		}
	}
	for device, want := range map[string]bool{
		"nvidia0": true, "nvidia15": true, "nvidia-uvm": true, "kfd": true,
		"nvidiactl": false, "nvidia": false, "nvidia-modeset": false, "null": false, "nvidia0x": false,
	} {
		if isGPU(device) != want {
			t.Errorf("/dev/%s: %v, want %v", device, !want, want)
		}
	}
}

// TestFound: a process that is not watched and maps the driver's library is told of within a second, and no other.
func TestFound(t *testing.T) {
	v := newVictim(t)
	driver := filepath.Join(t.TempDir(), "libcuda.so.1")
	text, err := os.ReadFile(v.library)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(driver, text, 0o755))
	w := newWatch(t, Options{Discover: true})
	v.must("dlopen %s", v.library)
	if u, uses, err := UserOf(uint32(v.pid)); uses || err != nil {
		t.Errorf("before: %+v %v %v", u, uses, err)
	}
	began := time.Now()
	v.must("dlopen %s", driver)
	for pid := range w.Found() {
		if int(pid) == v.pid {
			break
		}
	}
	t.Logf("found after %v", time.Since(began))
	u, uses, err := UserOf(uint32(v.pid))
	if !uses || err != nil || u.Library != driver || int(u.UID) != os.Getuid() || u.Cmdline == "" {
		t.Errorf("%+v %v %v", u, uses, err)
	}
	users, _, err := Users(t.Context())
	must.NoError(t, err)
	found := false
	for _, u := range users {
		found = found || int(u.PID) == v.pid
	}
	if !found {
		t.Errorf("%d is not among the %d processes that use a GPU", v.pid, len(users))
	}
}

// TestTop: a program's processes gather under the first of them, and a shell is no part of it.
func TestTop(t *testing.T) {
	v := newVictim(t)
	child := v.tell("fork")
	if top := Top(uint32(child)); int(top) != v.pid {
		t.Errorf("the top of child %d is %d, want %d", child, top, v.pid)
	}
	if top := Top(uint32(v.pid)); int(top) != v.pid {
		t.Errorf("the top of %d, which another program has started, is %d", v.pid, top)
	}
	sleep := exec.Command("sleep", "60")
	must.NoError(t, sleep.Start())
	defer func() { _ = sleep.Process.Kill(); _ = sleep.Wait() }()
	if top := Top(uint32(sleep.Process.Pid)); int(top) != sleep.Process.Pid {
		t.Errorf("the top of %d is %d, want itself", sleep.Process.Pid, top)
	}
}
