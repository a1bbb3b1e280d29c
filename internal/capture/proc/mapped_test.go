package proc

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// isOther wants the library that victims load later.
func isOther(base string) bool { return strings.HasPrefix(base, "libother") }

// waitMapped takes Mapped changes until the library is in the process, as a
// consumer does, and returns when the kernel says that it was mapped.
func (w *watch) waitMapped(pid int) (Mapping, uint64) {
	w.t.Helper()
	for {
		c := w.next(Mapped, pid)
		found, err := Libraries(c.Process, isOther)
		must.NoError(w.t, err)
		if len(found) > 0 {
			return found[0], c.At
		}
	}
}

func TestLibraryLoadedLater(t *testing.T) {
	for name, o := range map[string]Options{"records": {}, "polled": {PollMappings: true}} {
		t.Run(name, func(t *testing.T) {
			v := newVictim(t)
			w := newWatch(t, o)
			p := w.add(v.pid)
			if polled := strings.HasPrefix(w.State().Detail, "mappings are polled"); polled != o.PollMappings {
				t.Fatalf("state %+v", w.State())
			}
			if found, err := Libraries(p, isOther); err != nil || len(found) != 0 {
				t.Fatalf("before: %v %v", found, err)
			}
			before := monotonic()
			v.must("dlopen %s", v.library)
			after := monotonic()
			m, at := w.waitMapped(v.pid)
			for at < before { // word of what the program mapped when it started came after the library was there
				m, at = w.waitMapped(v.pid)
			}
			if m.Path != v.library || m.Deleted || m.Inode != inode(t, v.library) {
				t.Errorf("mapping %+v", m)
			}
			if !o.PollMappings && at > after {
				t.Errorf("mapped at %d, which was by %d", at, after)
			}
		})
	}
}

// A child's libraries are noticed too, whether it inherits or loads them.
func TestLibraryOfExeced(t *testing.T) {
	v := newVictim(t)
	w := newWatch(t, Options{})
	w.add(v.pid)
	v.must("dlopen %s", v.library)
	w.waitMapped(v.pid)
	child := v.tell("fork")
	if found, err := Libraries(w.next(Appeared, child).Process, isOther); err != nil || len(found) != 1 {
		t.Errorf("inherited: %v %v", found, err)
	}
	v.send("exec %s", v.path)
	v.answer()
	p := w.next(Execed, v.pid).Process
	if found, err := Libraries(p, isOther); err != nil || len(found) != 0 {
		t.Errorf("after the exec: %v %v", found, err)
	}
	v.must("dlopen %s", v.library)
	w.waitMapped(v.pid)
}

func TestTwoCopiesAreTwoLibraries(t *testing.T) {
	v := newVictim(t)
	second := filepath.Join(t.TempDir(), "libother.so")
	v.must("copy %s %s", v.library, second)
	hard := filepath.Join(filepath.Dir(v.library), "libother-again.so")
	must.NoError(t, os.Link(v.library, hard))
	for _, path := range []string{v.library, second, hard} {
		v.must("dlopen %s", path)
	}
	found, err := Libraries(described(t, v.pid), isOther)
	if err != nil || len(found) != 2 {
		t.Fatalf("%v %v, want two files", found, err)
	}
	all, err := Mappings(described(t, v.pid))
	if err != nil || len(all) < 4 { // these, the program, libc, ld.so
		t.Errorf("%d mappings, %v", len(all), err)
	}
}

// A pid that is used again belongs to another process, whatever is asked: even
// if it is used so soon that the start times are equal, for the pidfd tells.
func TestPidReuse(t *testing.T) {
	for name, pause := range map[string]time.Duration{"at once": 0, "later": 3 * nsPerTick} {
		t.Run(name, func(t *testing.T) {
			v, other := newVictim(t), newVictim(t)
			w := newWatch(t, Options{})
			w.add(v.pid)
			old := w.next(Appeared, v.tell("fork")).Process
			held := described(t, int(old.PID))
			reuse(t, v, other, int(old.PID), pause)
			w.next(Exited, int(old.PID))
			now := described(t, int(old.PID))
			if !now.Alive() || now.Parent != uint32(other.pid) || old.Alive() || held.Alive() {
				t.Errorf("alive: now %v, old %v %v", now.Alive(), old.Alive(), held.Alive())
			}
			refusesOld(t, held, now)
			if pause > 0 {
				notWatched(t, w, other, old, now)
			}
		})
	}
}

// reuse ends v's child and has other make a process with its pid.
func reuse(t *testing.T, v, other *victim, pid int, pause time.Duration) {
	t.Helper()
	waitKilled(t, v, pid)
	time.Sleep(pause)
	if got := other.tell("reborn %d", pid); got != pid {
		t.Skipf("the kernel does not give pid %d again (clone3 with set_tid: %d)", pid, got)
	}
}

func refusesOld(t *testing.T, old, now *Process) {
	t.Helper()
	if _, err := Mappings(old); err == nil || !strings.Contains(err.Error(), "no such process") {
		t.Errorf("mappings of the old process: %v", err)
	}
	m, err := Mappings(now)
	if err != nil || len(m) == 0 {
		t.Fatalf("mappings of the new process: %v %v", m, err)
	}
	if f, err := Open(old, m[0]); err == nil {
		f.Close()
		t.Error("a file of the new process was opened for the old one")
	}
}

// notWatched checks that the kernel does not take the new process for the old
// one, not even if the old one's key were still in its map.
func notWatched(t *testing.T, w *watch, other *victim, old, now *Process) {
	t.Helper()
	if old.ID() == now.ID() {
		t.Errorf("one identity: %+v", old.ID())
	}
	must.NoError(t, w.kernel.watch(old.ID()))
	waitKilled(t, other, int(now.PID))
	if !w.kernel.isWatched(old.ID()) {
		t.Error("the new process's death was taken for the old one's")
	}
}

func waitKilled(t *testing.T, parent *victim, pid int) {
	t.Helper()
	_ = syscall.Kill(pid, syscall.SIGKILL)
	waitReaped(t, parent, pid)
}

// waitReaped has v reap its child, which it does only when told.
func waitReaped(t *testing.T, v *victim, child int) {
	t.Helper()
	v.tell("storm 1") // waits for all children
	if err := syscall.Kill(child, 0); err == nil {
		t.Fatalf("pid %d is still there", child)
	}
}

func TestAnotherMountNamespace(t *testing.T) {
	needs.Root(t, "it loads BPF programs and looks into other processes")
	v := newVictim(t)
	dir := t.TempDir()
	v.must("mountns %s", dir)
	inside := dir + "/libother-inside.so"
	v.must("copy %s %s", v.library, inside)
	v.must("dlopen %s", inside)
	if _, err := os.Stat(inside); !os.IsNotExist(err) {
		t.Fatalf("the test sees the victim's file system: %v", err)
	}
	openOther(t, v, inside)
}

func TestChroot(t *testing.T) {
	needs.Root(t, "it loads BPF programs and looks into other processes")
	v := newVictim(t)
	dir := t.TempDir()
	v.must("copy %s %s/libother-inside.so", v.library, dir)
	v.must("chroot %s", dir)
	v.must("dlopen /libother-inside.so")
	openOther(t, v, "/libother-inside.so")
}

func TestChrootInAnotherMountNamespace(t *testing.T) {
	needs.Root(t, "it loads BPF programs and looks into other processes")
	v := newVictim(t)
	dir := t.TempDir()
	v.must("mountns %s", dir)
	v.must("copy %s %s/libother-inside.so", v.library, dir)
	v.must("chroot %s", dir)
	v.must("dlopen /libother-inside.so")
	openOther(t, v, "/libother-inside.so")
}

// Containers live on overlayfs, where maps and stat need not agree on a file's device.
func TestOverlay(t *testing.T) {
	needs.Root(t, "it loads BPF programs and looks into other processes")
	v := newVictim(t)
	dir := t.TempDir()
	v.must("mountns %s", dir) // the upper layer must not be an overlay itself
	for _, layer := range []string{"low", "top", "work", "all"} {
		v.must("mkdir %s/%s", dir, layer)
	}
	v.must("copy %s %s/low/libother-low.so", v.library, dir)
	if v.tell("overlay %s", dir) != 1 {
		t.Skip("no overlay can be mounted here")
	}
	v.must("copy %s %s/all/libother-top.so", v.library, dir)
	v.must("chroot %s/all", dir)
	for _, name := range []string{"/libother-low.so", "/libother-top.so"} {
		v.must("dlopen %s", name)
	}
	p := described(t, v.pid)
	found, err := Libraries(p, isOther)
	if err != nil || len(found) != 2 {
		t.Fatalf("libraries %+v %v", found, err)
	}
	for _, m := range found {
		opened(t, p, m, v.library)
	}
}

// openOther opens the victim's library and compares it with the one it was copied from.
func openOther(t *testing.T, v *victim, path string) {
	t.Helper()
	p := described(t, v.pid)
	found, err := Libraries(p, isOther)
	if err != nil || len(found) != 1 || found[0].Path != path {
		t.Fatalf("libraries %+v, %v; want %s", found, err, path)
	}
	// By its path: map_files would open it, too.
	f, err := newProcfs(procRoot).openPath(p, found[0])
	must.NoError(t, err)
	defer f.Close()
	sameContent(t, f, v.library)
}

func TestAnotherPidNamespace(t *testing.T) {
	v := newVictim(t)
	w := newWatch(t, Options{})
	w.add(v.pid)
	inside := v.tell("pidns")
	if inside < 0 {
		t.Skip("no pid namespace can be made here")
	}
	t.Cleanup(func() { _ = syscall.Kill(inside, syscall.SIGKILL) })
	p := w.next(Appeared, inside).Process // the victim itself stays outside, so it knows the outer pid
	if p.NSPID != 1 || p.PID == 1 || !p.Alive() {
		t.Errorf("process %+v", p)
	}
	if again := described(t, inside); again.NSPID != 1 || again.ID() != p.ID() {
		t.Errorf("by /proc: %+v", again)
	}
}

func inode(t testing.TB, path string) uint64 {
	t.Helper()
	info, err := os.Stat(path)
	must.NoError(t, err)
	return info.Sys().(*syscall.Stat_t).Ino
}

// BenchmarkNoticed prints how long after a library is mapped its process can be
// looked at: the part of the promised 100 ms that is used up here.
func BenchmarkNoticed(b *testing.B) {
	for name, o := range map[string]Options{"records": {}, "polled": {PollMappings: true}} {
		b.Run(name, func(b *testing.B) {
			var total, worst time.Duration
			for range b.N {
				v := newVictim(b)
				w := newWatch(b, o)
				w.add(v.pid)
				for c := range w.Changes() { // what its own start has mapped
					if c.Kind == Appeared {
						break
					}
				}
				v.must("dlopen %s", v.library)
				mapped := monotonic()
				w.waitMapped(v.pid)
				took := time.Duration(monotonic() - mapped)
				total += took
				worst = max(worst, took)
				v.stop()
				_ = w.Close()
			}
			b.ReportMetric(float64(total.Milliseconds())/float64(b.N), "ms/noticed")
			b.ReportMetric(float64(worst.Milliseconds()), "ms-worst")
		})
	}
}
