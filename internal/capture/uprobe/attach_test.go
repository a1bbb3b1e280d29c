package uprobe_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/feature"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

func modes() []uprobe.Mode { return []uprobe.Mode{uprobe.Session, uprobe.Multi, uprobe.Perf} }

// eachMode runs a test with each way of attaching that this kernel has.
func eachMode(t *testing.T, test func(t *testing.T, mode uprobe.Mode)) {
	needRoot(t)
	host := feature.Prober{}.Detect()
	needs := map[uprobe.Mode]feature.Name{
		uprobe.Session: feature.UprobeSession,
		uprobe.Multi:   feature.UprobeMulti,
		uprobe.Perf:    feature.PerfCookie,
	}
	for _, mode := range modes() {
		t.Run(string(mode), func(t *testing.T) {
			if f := host.Of(needs[mode]); f.Answer == feature.No {
				t.Skip("this kernel has no ", f.Name)
			}
			if mode == uprobe.Perf && !host.Capabilities.Has(feature.SysAdmin) {
				t.Skip("perf events of the uprobe PMU need CAP_SYS_ADMIN")
			}
			test(t, mode)
		})
	}
}

func newAttacher(t testing.TB, mode uprobe.Mode, r *rings) *uprobe.Attacher {
	t.Helper()
	a, err := uprobe.NewAttacher(uprobe.Options{LinkHolder: startLinkHolder(t), Mode: mode, Maps: r.maps})
	must.NoError(t, err)
	t.Cleanup(func() { a.Close() })
	return a
}

// attach probes ws in v and detaches at the end of the test.
func attach(t testing.TB, a *uprobe.Attacher, v *victim, ws ...want) *uprobe.Attachment {
	t.Helper()
	file, sites := v.sites(ws...)
	at, err := a.Attach(file, v.pid(), sites)
	must.NoError(t, err)
	if failed := at.Failed(); len(failed) > 0 {
		t.Fatal(failed)
	}
	t.Cleanup(func() {
		if err := at.Close(); err != nil {
			t.Error(err)
		}
	})
	return at
}

func TestCountsOfManyThreads(t *testing.T) {
	dir := buildVictim(t)
	eachMode(t, func(t *testing.T, mode uprobe.Mode) {
		v, r := startVictim(t, dir), newRings(t, 4<<20)
		attach(t, newAttacher(t, mode, r), v, want{name: "v_tick", cookie: sel(1)})
		v.do("threads 2500 8")
		const each = 2500
		perThread := map[uint32]map[uint64]bool{} // v_tick is told the number of the call
		for _, e := range r.events() {
			if e.PID != v.pid() {
				t.Fatalf("pid %d, want %d", e.PID, v.pid())
			}
			calls := perThread[e.TID]
			if calls == nil {
				calls = map[uint64]bool{}
				perThread[e.TID] = calls
			}
			if calls[e.Args[0]] || e.Args[0] >= each {
				t.Errorf("thread %d: call %d twice, or never made", e.TID, e.Args[0])
			}
			calls[e.Args[0]] = true
		}
		if len(perThread) != 8 {
			t.Errorf("%d threads, want 8", len(perThread))
		}
		for tid, calls := range perThread {
			if len(calls) != each {
				t.Errorf("thread %d: %d calls, want %d", tid, len(calls), each)
			}
		}
		r.noLosses()
	})
}

// Neither another process with the same library nor a child is the target.
func TestOnlyThePIDIsProbed(t *testing.T) {
	dir := buildVictim(t)
	eachMode(t, func(t *testing.T, mode uprobe.Mode) {
		v, other, r := startVictim(t, dir), startVictim(t, dir), newRings(t, 1<<20)
		attach(t, newAttacher(t, mode, r), v, want{name: "v_tick"}, want{name: "v_alloc", timed: true})
		other.do("tick 500")
		other.do("alloc 10")
		v.do("fork 500")
		if n := len(r.events()); n != 0 {
			t.Errorf("%d events of processes that are not the target", n)
		}
		v.do("tick 3")
		v.do("alloc 10")
		if n := len(r.events()); n != 4 {
			t.Errorf("%d events of the target, want 4", n)
		}
	})
}

func TestDetachLeavesNothing(t *testing.T) {
	dir := buildVictim(t)
	eachMode(t, func(t *testing.T, mode uprobe.Mode) {
		v, r := startVictim(t, dir), newRings(t, 1<<20)
		before := v.text(t)
		at := attach(t, newAttacher(t, mode, r), v, want{name: "v_tick"}, want{name: "v_wait", timed: true})
		ids := at.LinkIDs()
		v.do("tick 1")
		if bytes.Equal(before, v.text(t)) {
			t.Error("no breakpoint to be seen: this test looks in the wrong place")
		}
		v.send("wait 100000000") // its return is pending while we detach
		if err := at.Close(); err != nil || len(ids) < 2 {
			t.Fatal(len(ids), " links: ", err)
		}
		v.receive()
		r.events()
		if !bytes.Equal(before, v.text(t)) {
			t.Error("the function's code is not what it was")
		}
		for _, id := range ids {
			if linkExists(id) {
				t.Errorf("link %d still exists", id)
			}
		}
		v.do("tick 10")
		if n := len(r.events()); n != 0 {
			t.Errorf("%d events after the detach", n)
		}
	})
}

// text reads the victim's memory at v_tick, probed or not.
func (v *victim) text(t *testing.T) []byte {
	t.Helper()
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", v.pid()))
	must.NoError(t, err)
	defer mem.Close()
	b := make([]byte, 16)
	if _, err := mem.ReadAt(b, v.do("addr").n); err != nil {
		t.Fatal(err)
	}
	return b
}

func linkExists(id uint32) bool {
	const getFDByID = 30 // BPF_LINK_GET_FD_BY_ID
	attr := struct{ id, next, flags uint32 }{id: id}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, getFDByID, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno == 0 {
		unix.Close(int(fd))
	}
	return errno == 0
}

// One site that the kernel refuses does not cost the others their probes.
func TestRefusedSites(t *testing.T) {
	dir := buildVictim(t)
	eachMode(t, func(t *testing.T, mode uprobe.Mode) {
		v, r := startVictim(t, dir), newRings(t, 1<<20)
		file, sites := v.sites(want{name: "v_tick"}, want{name: "v_alloc", timed: true}, want{name: "v_many"},
			want{name: "v_launch"}, want{name: "v_wait", timed: true})
		beyond := uprobe.Site{Offset: 1 << 40, Cookie: 77}
		beyondTimed := uprobe.Site{Offset: 1 << 41, Cookie: 78, Timed: true}
		sites = append(sites[:2], append([]uprobe.Site{beyond, beyondTimed}, sites[2:]...)...)
		at, err := newAttacher(t, mode, r).Attach(file, v.pid(), sites)
		must.NoError(t, err)
		defer at.Close()
		bad := map[uprobe.Site]bool{}
		for _, f := range at.Failed() {
			bad[f.Site] = true
		}
		if len(bad) != 2 || !bad[beyond] || !bad[beyondTimed] {
			t.Errorf("failed: %v", at.Failed())
		}
		v.do("tick 5")
		v.do("alloc 1")
		v.do("launches")
		perFunc := map[uint16]int{}
		for _, e := range r.events() {
			perFunc[e.Func]++
		}
		launches := 1
		if v.elf().Machine.String() == "EM_X86_64" {
			launches = 2 // directly and through the thunk
		}
		if diff := cmp.Diff(map[uint16]int{0: 5, 1: 1, 2: 1, 3: launches}, perFunc); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

func TestRefusedInstruction(t *testing.T) {
	dir := buildVictim(t)
	eachMode(t, func(t *testing.T, mode uprobe.Mode) {
		v, r := startVictim(t, dir), newRings(t, 1<<20)
		if v.elf().Machine.String() != "EM_X86_64" {
			t.Skip("the refused instruction is one of x86-64")
		}
		a := newAttacher(t, mode, r)
		file, sites := v.sites(want{name: "v_locked"}, want{name: "v_tick"})
		at, err := a.Attach(file, v.pid(), sites)
		must.NoError(t, err)
		defer at.Close()
		if len(at.Failed()) != 1 || at.Failed()[0].Site != sites[0] || !errors.Is(at.Failed()[0], unix.ENOTSUP) {
			t.Errorf("failed: %v", at.Failed())
		}
		if _, err := a.Attach(file, v.pid(), sites[:1]); !errors.Is(err, unix.ENOTSUP) {
			t.Errorf("nothing to probe, yet: %v", err)
		}
	})
}

func TestEndedProcess(t *testing.T) {
	dir := buildVictim(t)
	eachMode(t, func(t *testing.T, mode uprobe.Mode) {
		v, r := startVictim(t, dir), newRings(t, 1<<20)
		a := newAttacher(t, mode, r)
		file, sites := v.sites(want{name: "v_tick"}, want{name: "v_wait", timed: true})
		for _, pid := range []uint32{0, 1<<22 + 1, 1 << 31, 1<<32 - 1} {
			if _, err := a.Attach(file, pid, sites); !errors.Is(err, uprobe.ErrNoProcess) {
				t.Errorf("pid %d: %v", pid, err)
			}
		}
	})
}

// What is probed is the file that was opened, not the one its path now leads to.
func TestFileReplacedAfterOpen(t *testing.T) {
	dir := buildVictim(t)
	eachMode(t, func(t *testing.T, mode uprobe.Mode) {
		v, r := startVictim(t, dir), newRings(t, 1<<20)
		file, sites := v.sites(want{name: "v_tick"})
		must.NoError(t, replace(v.lib))
		at, err := newAttacher(t, mode, r).Attach(file, v.pid(), sites)
		must.NoError(t, err)
		defer at.Close()
		v.do("tick 9")
		if n := len(r.events()); n != 9 {
			t.Errorf("%d events, want 9", n)
		}
	})
}

// replace puts a copy in the place of path, with an inode of its own.
func replace(path string) error {
	old, err := os.Open(path)
	if err != nil {
		return err
	}
	defer old.Close()
	b, err := io.ReadAll(old)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", b, 0o755); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func TestUnknownMode(t *testing.T) {
	if _, err := uprobe.NewAttacher(uprobe.Options{Mode: "kprobe"}); err == nil {
		t.Error("an unknown mode is taken")
	}
}

// The best mode is what NewAttacher takes when not told.
func TestDetectedMode(t *testing.T) {
	needRoot(t)
	a := newAttacher(t, "", newRings(t, 1<<16))
	for _, err := range a.Rejected() {
		t.Log(err)
	}
	for _, mode := range modes() {
		forced, err := uprobe.NewAttacher(uprobe.Options{Mode: mode, Maps: newRings(t, 1<<16).maps})
		if err != nil {
			continue
		}
		forced.Close()
		if a.Mode() != mode {
			t.Errorf("detected %s, but %s works", a.Mode(), mode)
		}
		return
	}
}
