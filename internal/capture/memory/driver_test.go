package memory_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// driverTruth is what testdata/c10sim/driver_victim.c says of itself.
type driverTruth struct {
	Device, Pinned, Managed, Arrays, Shared uint64
	Allocations, Frees                      uint64
}

func startDriverVictim(t testing.TB) *victim {
	t.Helper()
	return startVictim(t, filepath.Join(filepath.Dir(build(t)), "drivervictim"))
}

func (v *victim) driverTruth() (out driverTruth) {
	v.t.Helper()
	if err := json.Unmarshal([]byte(v.ask("truth")), &out); err != nil {
		v.t.Fatal(err)
	}
	return out
}

// standing returns what the last events say, by type of device: bytes, and calls.
func (w *watch) standing() (bytes map[uint8]uint64, allocations, frees uint64) {
	w.drain()
	bytes = map[uint8]uint64{}
	levels, flows := w.held(), map[uint16][4]uint64{}
	for device, n := range levels {
		bytes[device.Type()] += n
	}
	for _, e := range w.of(event.MemoryFlow) {
		flows[e.Func] = e.Args
	}
	for _, f := range flows {
		allocations, frees = allocations+f[0], frees+f[1]
	}
	return bytes, allocations, frees
}

// held returns what the last events say, by device.
func (w *watch) held() map[event.MemoryDevice]uint64 {
	out := map[event.MemoryDevice]uint64{}
	for _, e := range w.of(event.Memory) {
		out[event.MemoryDevice(e.Func)] = e.Args[0]
	}
	return out
}

// TestDriverGPUs: what is allocated on each of several GPUs, however the program chooses one; what is allocated in a
// context from before the attach is of a GPU that is not known.
func TestDriverGPUs(t *testing.T) {
	const first, second, unknown = event.DriverMemory, event.DriverMemory | 1<<8, event.DriverMemory | 255<<8
	w := newWatch(t)
	v := startDriverVictim(t)
	w.follow(v)
	v.ask("leak 1")
	for range 2 {
		var truth [2]uint64
		if err := json.Unmarshal([]byte(v.ask("spread 3")), &truth); err != nil {
			t.Fatal(err)
		}
		w.drain()
		held := w.held()
		if held[first] != truth[0] || held[second] != truth[1] || held[unknown] != 1<<20 || len(held) != 3 {
			t.Errorf("held %v, truth %v and 1 MiB", held, truth)
		}
	}
	if n := w.source.Runs(0).Count; n != 1+2*3*8+2*3*7 { // allocations, and changes of the context
		t.Errorf("%d runs", n)
	}
	// While the source is off, changes of the context are not seen.
	off := len(w.source.Levels()) - 1
	for _, level := range []int{off, 0} {
		if err := w.source.SetLevel(level); err != nil {
			t.Fatal(err)
		}
	}
	w.events = nil
	v.ask("leak 2")
	w.drain()
	if held := w.held(); held[unknown] != 2<<20 || held[first] != 0 || held[second] != 0 {
		t.Errorf("held %v after it was off, want 2 MiB of no GPU that is known", held)
	}
	late := newWatch(t)
	old := startDriverVictim(t)
	old.ask("retain_all")
	late.follow(old)
	old.ask("spread 1")
	late.drain()
	if held := late.held(); held[unknown] != 6<<20 || held[first] != 1<<20 || held[second] != 2<<20 {
		t.Errorf("held %v after a late attach, want 6 MiB of no GPU that is known", held)
	}
}

// TestDriverGPUsOfPerf: where some calls would cost too much to probe, no context is followed: only what a call says
// itself is of a GPU that is known.
func TestDriverGPUsOfPerf(t *testing.T) {
	const second, unknown = event.DriverMemory | 1<<8, event.DriverMemory | 255<<8
	w := newWatchBy(t, uprobe.Perf)
	v := startDriverVictim(t)
	w.follow(v)
	v.ask("spread 1")
	w.drain()
	if held := w.held(); held[unknown] != 7<<20 || held[second] != 2<<20 || len(held) != 2 {
		t.Errorf("held %v, want 7 MiB of no GPU that is known", held)
	}
}

// TestDriverTotalsAreExact: what the driver's calls allocated and freed since the attach, by kind of memory, after each
// kind of call; and what was allocated before the attach is not counted when it is freed.
func TestDriverTotalsAreExact(t *testing.T) {
	w := newWatch(t)
	v := startDriverVictim(t)
	v.ask("map 3")
	before := v.driverTruth()
	w.follow(v)
	v.ask("unmap")
	missed := v.driverTruth()
	for _, command := range []string{
		"leak 20", "churn 3000", "host 11", "map 40", "handles 9", "hosted 7", "oom 2199023255552", "unmap", "retain", "map 5",
		"pitch 5", "arrays 3", "import 5", "external 3", "ipc 5",
	} {
		v.ask("%s", command)
		truth := v.driverTruth()
		bytes, allocations, frees := w.standing()
		want := map[uint8]uint64{
			event.DriverMemory: truth.Device - missed.Device, event.PinnedMemory: truth.Pinned,
			event.ManagedMemory: truth.Managed, event.ArrayMemory: truth.Arrays, event.SharedMemory: truth.Shared,
		}
		for kind, n := range want {
			if bytes[kind] != n {
				t.Errorf("after %s: %d bytes of type %#x, truth %d", command, bytes[kind], kind, n)
			}
		}
		if allocations != truth.Allocations-before.Allocations || frees != truth.Frees-missed.Frees {
			t.Errorf("after %s: %d allocations, %d frees, truth %+v, before %+v, %+v",
				command, allocations, frees, truth, before, missed)
		}
	}
	if losses := w.source.Losses(); len(losses) != 0 {
		t.Errorf("losses %+v", losses)
	}
}

// driverSite returns the name of the victim's function that made an event.
func (w *watch) driverSite(e *event.Event) string {
	frames, nodes, at := w.profile.Stacks([]uint64{e.Args[0]})
	var names []string
	for n := int32(at[e.Args[0]]) - 1; n >= 0; n = nodes[n].Parent {
		names = append(names, frames[nodes[n].Frame].Name)
	}
	return strings.Join(names, " < ")
}

// TestDriverStacks: each block that stays is told of with the place that allocated it, one that was freed with its
// lifetime, and an allocation that failed with what was asked for.
func TestDriverStacks(t *testing.T) {
	w := newWatch(t)
	v := startDriverVictim(t)
	w.follow(v)
	v.ask("leak 10")
	v.ask("map 6")
	v.ask("churn 5")
	v.ask("host 4")
	v.ask("oom 2199023255552")
	w.drain()
	live, freed := map[string]uint64{}, 0
	for _, e := range w.of(event.Allocation) {
		name := w.driverSite(&e)
		if e.Flags&event.Open == 0 {
			freed++
			if !strings.HasPrefix(name, "churn <") && !strings.HasPrefix(name, "staging <") {
				t.Errorf("freed of %s", name)
			}
			continue
		}
		site, _, _ := strings.Cut(name, " < ")
		live[site] += e.Args[2]
		if !strings.Contains(name, "main") {
			t.Errorf("a stack that does not reach main: %s", name)
		}
	}
	want := map[string]uint64{"leak_session": 10 << 20, "grow_pool": 12 << 20, "staging": 2*(1<<20+64<<10) + 4<<20}
	for site, n := range want {
		if live[site] != n {
			t.Errorf("%s: %d bytes live, truth %d", site, live[site], n)
		}
	}
	if len(live) != len(want) || freed != 5+6 {
		t.Errorf("live %v, %d freed", live, freed)
	}
	e := w.last(event.OutOfMemory)
	if e.Args[1] != 1<<41 || e.Args[2] != 10<<20 || !strings.HasPrefix(w.driverSite(&e), "main") {
		t.Errorf("%+v at %s", e, w.driverSite(&e))
	}
}

// TestDriverLevels: where frameworks are watched in windows, the driver's blocks are still followed; off means off, and
// on again counts from then on.
func TestDriverLevels(t *testing.T) {
	w := newWatch(t)
	v := startDriverVictim(t)
	w.follow(v)
	v.ask("leak 3")
	off := len(w.source.Levels()) - 1
	if err := w.source.SetLevel(off - 1); err != nil {
		t.Fatal(err)
	}
	v.ask("leak 4")
	if bytes, _, _ := w.standing(); bytes[event.DriverMemory] != 7<<20 {
		t.Errorf("%d bytes in windows, truth 7 MiB", bytes[event.DriverMemory])
	}
	if n := len(w.of(event.Allocation)); n != 7 {
		t.Errorf("%d blocks are told of in windows, want 7", n)
	}
	v.ask("leak 1")
	w.drain()
	runs := w.source.Runs(0)
	w.events = nil
	if err := w.source.SetLevel(off); err != nil {
		t.Fatal(err)
	}
	w.drain()
	if got := w.last(event.Memory).Args[0]; got != 8<<20 {
		t.Errorf("%d bytes at the end, truth 8 MiB", got)
	}
	if now := w.source.Runs(0); now.Count != runs.Count || now.NS == 0 {
		t.Errorf("the calls took %+v before it was off, %+v then", runs, now)
	}
	if losses := w.source.Losses(); len(losses) != 1 || !strings.Contains(losses[0].Detail, "was off") {
		t.Errorf("losses %+v", losses)
	}
	w.events = nil
	v.ask("leak 5")
	w.drain()
	if len(w.events) != 0 {
		t.Errorf("%d events of a source that is off, the first %+v", len(w.events), w.events[0])
	}
	if err := w.source.SetLevel(0); err != nil {
		t.Fatal(err)
	}
	v.ask("leak 2")
	if bytes, allocations, _ := w.standing(); bytes[event.DriverMemory] != 2<<20 || allocations != 8+2 {
		t.Errorf("%d bytes and %d allocations after it was on again, want 2 MiB and 10",
			bytes[event.DriverMemory], allocations)
	}
}

// TestDriverUnmapsOlder: a call that ends mappings older than the attach ends those behind them too.
func TestDriverUnmapsOlder(t *testing.T) {
	w := newWatch(t)
	v := startDriverVictim(t)
	v.ask("map 3")
	w.follow(v)
	v.ask("map 2")
	v.ask("unmap")
	if bytes, allocations, frees := w.standing(); bytes[event.DriverMemory] != 0 || allocations != 2 || frees != 2 {
		t.Errorf("%d bytes, %d allocations, %d frees; want 0, 2, 2", bytes[event.DriverMemory], allocations, frees)
	}
	if losses := w.source.Losses(); len(losses) != 0 {
		t.Errorf("losses %+v", losses)
	}
}

// TestDriverForgets: nothing is kept of the blocks and mappings of a process that is gone.
func TestDriverForgets(t *testing.T) {
	w := newWatch(t)
	v := startDriverVictim(t)
	p := w.follow(v)
	v.ask("map 5")
	v.ask("leak 5")
	if n := w.source.DriverKeys(t, p.PID); n != 5+5+5 {
		t.Errorf("%d blocks and mappings, want 15", n)
	}
	w.source.Forget(p)
	if n := w.source.DriverKeys(t, p.PID); n != 0 {
		t.Errorf("%d blocks and mappings of a process that was forgotten", n)
	}
}

// TestDriverExec: a process that replaces its program holds nothing of what it had before, and is watched further.
func TestDriverExec(t *testing.T) {
	w := newWatch(t)
	v := startDriverVictim(t)
	p := w.follow(v)
	v.ask("leak 3")
	v.ask("map 2")
	if answer := v.ask("exec"); answer != "ready" {
		t.Fatal(answer)
	}
	p.Execs++ // as proc.Watcher does
	if err := w.source.Follow(p); err != nil {
		t.Fatal(err)
	}
	if n := w.source.DriverKeys(t, p.PID); n != 0 {
		t.Errorf("%d blocks and mappings of the program before", n)
	}
	bytes, allocations, _ := w.standing()
	if bytes[event.DriverMemory] != 0 || allocations != 3+2 {
		t.Errorf("%d bytes, %d allocations; want 0 and 5", bytes[event.DriverMemory], allocations)
	}
	if flow := w.last(event.MemoryFlow).Args; flow[2] != flow[3] {
		t.Errorf("%d bytes were allocated, %d freed", flow[2], flow[3])
	}
	for _, e := range w.of(event.Allocation) {
		if e.Flags&event.Open != 0 {
			t.Errorf("a block of the program before is live: %+v", e)
		}
	}
	v.ask("leak 4")
	if bytes, _, _ := w.standing(); bytes[event.DriverMemory] != 4<<20 {
		t.Errorf("%d bytes of the new program, truth 4 MiB", bytes[event.DriverMemory])
	}
}

// TestDriverExecWhileOff: nothing is said of what a process held while nothing was watched.
func TestDriverExecWhileOff(t *testing.T) {
	w := newWatch(t)
	v := startDriverVictim(t)
	p := w.follow(v)
	v.ask("leak 3")
	if err := w.source.SetLevel(len(w.source.Levels()) - 1); err != nil {
		t.Fatal(err)
	}
	w.drain()
	w.events = nil
	v.ask("exec")
	p.Execs++ // as proc.Watcher does
	if err := w.source.Follow(p); err != nil {
		t.Fatal(err)
	}
	if w.drain(); len(w.events) != 0 {
		t.Errorf("%d events of a source that is off, the first %+v", len(w.events), w.events[0])
	}
}

// TestDriverState: a program without PyTorch is watched.
func TestDriverState(t *testing.T) {
	w := newWatch(t)
	v := startDriverVictim(t)
	p := w.follow(v)
	if state := w.source.State(); state.State != "running" {
		t.Errorf("state %+v", state)
	}
	w.source.Forget(p)
	if state := w.source.State(); state.State != "waiting" {
		t.Errorf("state %+v after it has gone", state)
	}
}
