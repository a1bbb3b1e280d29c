package memory_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/memory"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/profile"
	"github.com/inferscope/inferscope/internal/capture/ring"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// truth is what the victim says of itself.
type truth struct {
	Allocated, Reserved, Peak  uint64
	Allocations, Frees         uint64
	AllocatedBytes, FreedBytes uint64
	Sites                      map[string]struct{ Count, Bytes, Live uint64 }
}

// victim is testdata/c10sim/victim.cpp.
type victim struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

func build(t testing.TB) string {
	t.Helper()
	needs.Tool(t, "c++")
	out := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "make", "-s", "-C", "../../../testdata/c10sim", "OUT="+out)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make: %v\n%s", err, text)
	}
	return filepath.Join(out, "c10victim")
}

func startVictim(t testing.TB, program string, args ...string) *victim {
	t.Helper()
	v := &victim{t: t, cmd: exec.CommandContext(t.Context(), program, args...)}
	in, err := v.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := v.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	v.in, v.out = in, bufio.NewScanner(out)
	if err := v.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = v.cmd.Wait()
	})
	v.line()
	return v
}

func (v *victim) line() string {
	v.t.Helper()
	if !v.out.Scan() {
		v.t.Fatalf("the victim ended: %v", v.out.Err())
	}
	return v.out.Text()
}

func (v *victim) ask(format string, args ...any) string {
	v.t.Helper()
	if _, err := fmt.Fprintf(v.in, format+"\n", args...); err != nil {
		v.t.Fatal(err)
	}
	return v.line()
}

func (v *victim) truth() (out truth) {
	v.t.Helper()
	text := strings.NewReplacer("allocated_bytes", "AllocatedBytes", "freed_bytes", "FreedBytes").
		Replace(v.ask("truth"))
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		v.t.Fatalf("%s: %v", text, err)
	}
	return out
}

// watch is a source on a victim.
type watch struct {
	t       testing.TB
	rings   *ring.Rings
	profile *profile.Source
	source  *memory.Source
	events  []event.Event
}

func newWatch(t testing.TB) *watch {
	t.Helper()
	mode, err := uprobe.Detect()
	if err != nil {
		t.Fatal(err)
	}
	return newWatchBy(t, mode)
}

func newWatchBy(t testing.TB, mode uprobe.Mode) *watch {
	t.Helper()
	needs.Root(t, "it attaches probes")
	w := &watch{t: t}
	var err error
	if w.rings, err = ring.New(ring.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.rings.Close() })
	if w.profile, err = profile.New(profile.Options{OwnOnly: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.profile.Close() })
	if w.source, err = memory.New(w.rings, memory.Options{Mode: mode, Stacks: w.profile}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.source.Close() })
	return w
}

func (w *watch) follow(v *victim) *proc.Process {
	w.t.Helper()
	p, err := proc.Describe(v.cmd.Process.Pid)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { p.Close() })
	if err := w.profile.Follow(p); err != nil {
		w.t.Fatal(err)
	}
	if err := w.source.Follow(p); err != nil {
		w.t.Fatal(err)
	}
	return p
}

// drain takes what has come, and what Complete adds.
func (w *watch) drain() {
	rows := w.source.Complete(clock.Monotonic())
	w.rings.Drain(func(batch []event.Event) { w.events = append(w.events, batch...) })
	w.source.Feed(0, func(batch []event.Event) { w.events = append(w.events, batch...) })
	w.events = append(w.events, rows...)
	now := clock.Monotonic()
	for _, e := range w.events {
		if e.TS > now || e.Dur > now || e.End() > now {
			w.t.Fatalf("an event ends in the future: %+v", e)
		}
	}
}

func (w *watch) of(kind event.Kind) (out []event.Event) {
	for _, e := range w.events {
		if e.Kind == kind {
			out = append(out, e)
		}
	}
	return out
}

// site returns the name of the victim's function that made an event.
func (w *watch) site(e *event.Event) string {
	frames, nodes, at := w.profile.Stacks([]uint64{e.Args[0]})
	for n := int32(at[e.Args[0]]) - 1; n >= 0; n = nodes[n].Parent {
		f := frames[nodes[n].Frame]
		name := strings.TrimPrefix(f.Name, "(anonymous namespace)::")
		name, _, _ = strings.Cut(name, "(")
		switch name {
		case "small_activation", "large_activation", "leaky_cache", "load_weights", "loop", "main":
			return name
		}
	}
	return "?" + fmt.Sprint(frames)
}

func (w *watch) last(kind event.Kind) event.Event {
	w.t.Helper()
	all := w.of(kind)
	if len(all) == 0 {
		w.t.Fatalf("no events of kind %d", kind)
	}
	return all[len(all)-1]
}

// TestTotalsAreExact: all that the allocator counted, after a late attach, at each level of the source that does not
// say that it loses some of it; at one that does, nothing that is not true, and the total as soon as a window is open.
func TestTotalsAreExact(t *testing.T) {
	program := build(t)
	for level, l := range newWatch(t).source.Levels() {
		t.Run(l.Name, func(t *testing.T) {
			switch {
			case l.Name == recording.LevelOff:
				nothingIsCounted(t, program, level)
			case strings.Contains(l.Loses, "totals"):
				windowsAreTrue(t, program, level)
			default:
				totalsAreExact(t, program, level)
			}
		})
	}
}

// nothingIsCounted: a source that is off has no events of a program that allocates.
func nothingIsCounted(t *testing.T, program string, level int) {
	w := newWatch(t)
	if err := w.source.SetLevel(level); err != nil {
		t.Fatal(err)
	}
	v := startVictim(t, program)
	w.follow(v)
	v.ask("run 2000")
	w.drain()
	if len(w.events) != 0 {
		t.Errorf("%d events, the first %+v", len(w.events), w.events[0])
	}
}

// windowsAreTrue: in windows less is counted than happened, never more, and the first window gives the exact total.
func windowsAreTrue(t *testing.T, program string, level int) {
	w := newWatch(t)
	if err := w.source.SetLevel(level); err != nil {
		t.Fatal(err)
	}
	v := startVictim(t, program)
	v.ask("keep 100")
	before := v.truth()
	w.follow(v)
	for end := time.Now().Add(30 * time.Second); len(w.of(event.Memory)) == 0; {
		if time.Now().After(end) {
			t.Fatal("no window was open in 30 s")
		}
		v.ask("run 20")
		w.drain()
	}
	after := v.truth()
	// Later runs, which no window saw, leave the total as it is: run frees what it allocates.
	if got := w.last(event.Memory); got.Args[0] != after.Allocated || got.Args[2] > after.Peak {
		t.Errorf("level %v, want %d and a peak of at most %d", got.Args, after.Allocated, after.Peak)
	}
	flow := w.last(event.MemoryFlow).Args
	most := [4]uint64{
		after.Allocations - before.Allocations, after.Frees - before.Frees,
		after.AllocatedBytes - before.AllocatedBytes, after.FreedBytes - before.FreedBytes,
	}
	for i := range flow {
		if flow[i] == 0 || flow[i] > most[i] {
			t.Errorf("flow %v, want something and at most %v", flow, most)
		}
	}
}

func totalsAreExact(t *testing.T, program string, detail int) {
	w := newWatch(t)
	if err := w.source.SetLevel(detail); err != nil {
		t.Fatal(err)
	}
	v := startVictim(t, program)
	v.ask("keep 100")
	before := v.truth()
	w.follow(v)
	v.ask("run 2000")
	w.drain()
	after := v.truth()

	level, flow := w.last(event.Memory), w.last(event.MemoryFlow)
	want := [4]uint64{after.Allocated, after.Reserved, level.Args[2], before.Allocated}
	if level.Args != want {
		t.Errorf("level %v, want %v", level.Args, want)
	}
	want = [4]uint64{
		after.Allocations - before.Allocations, after.Frees - before.Frees,
		after.AllocatedBytes - before.AllocatedBytes, after.FreedBytes - before.FreedBytes,
	}
	if flow.Args != want {
		t.Errorf("flow %v, want %v", flow.Args, want)
	}
	if level.Func != event.CUDAMemory {
		t.Errorf("device %#x, want CUDA 0", level.Func)
	}
	peak := uint64(0)
	for _, e := range w.of(event.Memory) {
		peak = max(peak, e.Args[2])
	}
	if peak != after.Peak {
		t.Errorf("peak %d, want %d", peak, after.Peak)
	}
}

// weight is how many bytes a sampled allocation stands for.
func weight(e *event.Event) float64 {
	return float64(e.Args[2]) / -math.Expm1(-float64(e.Args[2])/float64(e.Args[3]))
}

// TestSamplesAreFair: samples, weighted, are the truth of each site, within what chance explains; the live
// ones are those that are not freed, with the function that allocated them.
func TestSamplesAreFair(t *testing.T) {
	program := build(t)
	w := newWatch(t)
	v := startVictim(t, program)
	w.follow(v)
	v.ask("keep 200")
	for range 20 {
		v.ask("run 500")
		time.Sleep(20 * time.Millisecond) // so that the mean follows the rate
		w.drain()
	}
	w.events = w.events[:len(w.events):len(w.events)]
	after := v.truth()
	bytes, live, n := map[string]float64{}, map[string]float64{}, map[string]float64{}
	seen := map[[2]uint64]bool{}
	for _, e := range w.of(event.Allocation) {
		if e.Flags&event.Open != 0 || seen[[2]uint64{e.Args[1], e.TS}] {
			continue
		}
		seen[[2]uint64{e.Args[1], e.TS}] = true
		bytes[w.site(&e)] += weight(&e)
		n[w.site(&e)]++
	}
	w.events = nil
	w.drain()
	for _, e := range w.of(event.Allocation) {
		if e.Flags&event.Open == 0 {
			t.Fatalf("an event that is not of a live block: %+v", e)
		}
		site := w.site(&e)
		live[site] += weight(&e)
		bytes[site] += weight(&e)
		n[site]++
	}
	t.Logf("bytes %v live %v samples %v", bytes, live, n)
	for _, site := range []string{"large_activation", "leaky_cache", "load_weights"} {
		want := float64(after.Sites[site].Bytes)
		tolerance := 5 / math.Sqrt(max(n[site], 1))
		if math.Abs(bytes[site]-want) > tolerance*want {
			t.Errorf("%s: %.0f bytes of %.0f samples, truth %.0f", site, bytes[site], n[site], want)
		}
	}
	for _, site := range []string{"leaky_cache", "load_weights"} {
		want := float64(after.Sites[site].Live)
		if math.Abs(live[site]-want) > 5/math.Sqrt(max(n[site], 1))*want {
			t.Errorf("%s: %.0f bytes live, truth %.0f", site, live[site], want)
		}
	}
	if live["large_activation"] != 0 || live["small_activation"] != 0 {
		t.Errorf("activations are live that were freed: %v", live)
	}
	for site := range bytes {
		if strings.HasPrefix(site, "?") {
			t.Errorf("stacks without a function of the victim's: %s", site)
		}
	}
}

// TestOutOfMemory: what was asked for, and where.
func TestOutOfMemory(t *testing.T) {
	program := build(t)
	w := newWatch(t)
	v := startVictim(t, program)
	w.follow(v)
	v.ask("keep 3")
	v.ask("oom 123456789")
	after := v.truth()
	w.drain()
	e := w.last(event.OutOfMemory)
	if e.Args[1] != 123456789 || e.Args[2] != after.Allocated || e.Args[3] != after.Reserved || w.site(&e) != "main" {
		t.Errorf("%+v at %s, truth %+v", e, w.site(&e), after)
	}
}

// TestEndOfProcess: what a process had not freed ends with it, and its numbers are used again.
func TestEndOfProcess(t *testing.T) {
	program := build(t)
	w := newWatch(t)
	v := startVictim(t, program)
	p := w.follow(v)
	v.ask("keep 50")
	if err := v.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = v.cmd.Wait()
	w.source.Forget(p)
	w.drain()
	if n := len(w.of(event.Allocation)); n == 0 {
		t.Error("no allocation is told of")
	}
	w.events = nil
	w.drain()
	if len(w.events) != 0 {
		t.Errorf("%d events of a process that was forgotten", len(w.events))
	}
}

// TestLevels: with the source off the victim is not probed, and on again totals are exact.
func TestLevels(t *testing.T) {
	program := build(t)
	w := newWatch(t)
	v := startVictim(t, program)
	w.follow(v)
	v.ask("keep 10")
	off := len(w.source.Levels()) - 1
	if err := w.source.SetLevel(off); err != nil {
		t.Fatal(err)
	}
	calls := w.source.Runs(0).Count
	v.ask("keep 10")
	if n := w.source.Runs(0).Count; n != calls {
		t.Errorf("%d calls were seen while the source was off", n-calls)
	}
	v.ask("oom 123456789")
	w.drain()
	if e := w.last(event.OutOfMemory); e.Args[1] != 123456789 {
		t.Errorf("an allocation that failed while the source was off: %+v", e)
	}
	if err := w.source.SetLevel(0); err != nil {
		t.Fatal(err)
	}
	v.ask("keep 10")
	w.drain()
	if got, want := w.last(event.Memory).Args[0], v.truth().Allocated; got != want {
		t.Errorf("%d bytes allocated, truth %d", got, want)
	}
	if state := w.source.State(); state.State != "running" {
		t.Errorf("state %+v", state)
	}
}

// TestNothingToProbe: a libc10 without the functions is a loss of its process.
func TestNothingToProbe(t *testing.T) {
	program := build(t)
	library := filepath.Join(filepath.Dir(program), "libc10.so")
	v := startVictim(t, program)
	if err := os.Remove(library); err != nil { // another inode of that name
		t.Fatal(err)
	}
	empty := exec.CommandContext(t.Context(), "c++", "-shared", "-o", library, "-x", "c++", os.DevNull)
	if text, err := empty.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	w := newWatch(t)
	w.follow(v) // the mapped inode is still there
	load := exec.CommandContext(t.Context(), "sleep", "30")
	load.Env = append(os.Environ(), "LD_PRELOAD="+library)
	if err := load.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = load.Process.Kill()
		_ = load.Wait()
	}()
	waitMapped(t, load.Process.Pid, library)
	p, err := proc.Describe(load.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := w.source.Follow(p); err == nil {
		t.Error("no error says that there is nothing to probe")
	}
	found := false
	for _, l := range w.source.Losses() {
		found = found || l.PID == p.PID
	}
	if !found {
		t.Errorf("no loss says so: %+v", w.source.Losses())
	}
}

func waitMapped(t *testing.T, pid int, path string) {
	t.Helper()
	for range 200 {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/maps")
		if err == nil && strings.Contains(string(text), path) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s is not mapped", path)
}

// TestPythonStacks: the stack of an allocation has the Python lines, between native frames.
func TestPythonStacks(t *testing.T) {
	python := needs.Tool(t, "python3")
	library := filepath.Join(filepath.Dir(build(t)), "libc10.so")
	if real := os.Getenv("LIBC10"); real != "" { // PyTorch's own
		library = real
	}
	w := newWatch(t)
	v := startVictim(t, python, "testdata/allocate.py", library)
	w.follow(v)
	v.ask("keep 50")
	w.drain()
	all := w.of(event.Allocation)
	if len(all) == 0 {
		t.Fatal("no samples")
	}
	for _, e := range all {
		if e.Func != 0x0101 {
			t.Errorf("device %#x, want CUDA 1", e.Func)
		}
		frames, nodes, at := w.profile.Stacks([]uint64{e.Args[0]})
		var names []string
		for n := int32(at[e.Args[0]]) - 1; n >= 0; n = nodes[n].Parent {
			names = append(names, frames[nodes[n].Frame].Name)
		}
		text := strings.Join(names, " < ")
		order := []string{"c10::reportMemoryUsageToProfiler", "keep_cache", "serve", "<module>"}
		from := 0
		for _, want := range order {
			i := strings.Index(text[from:], want)
			if i < 0 {
				t.Fatalf("%s is not in %s", want, text)
			}
			from += i
		}
		if o := event.StackOrigin(e.Ret); o != event.Whole && o != event.Spliced {
			t.Errorf("the stack is %d, neither whole nor spliced: %s", o, text)
		}
	}
	t.Logf("origin %d of %d samples", all[0].Ret, len(all))
}

// TestWindows: where probes are off most of the time, the total is exact after each call that a window saw, and nothing
// is said to be live whose free could have been missed.
func TestWindows(t *testing.T) {
	program := build(t)
	w := newWatch(t)
	v := startVictim(t, program)
	w.follow(v)
	windows := len(w.source.Levels()) - 2
	if err := w.source.SetLevel(windows); err != nil {
		t.Fatal(err)
	}
	seen, missed := 0, 0
	for end := time.Now().Add(time.Minute); (seen < 5 || missed < 5) && time.Now().Before(end); {
		before := w.source.Runs(0).Count
		v.ask("keep 1")
		at := v.truth().Allocated
		after := w.source.Runs(0).Count
		w.drain()
		switch after - before {
		case 0:
			missed++
		case 1:
			seen++
			if got := w.last(event.Memory).Args[0]; got != at {
				t.Errorf("after call %d, which was seen, %d bytes are said to be allocated, want %d",
					seen+missed, got, at)
			}
		default:
			t.Fatalf("one call was counted %d times", after-before)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if seen < 5 || missed < 5 {
		t.Errorf("%d calls were seen and %d missed; want windows, and time between them", seen, missed)
	}
	if err := w.source.SetLevel(len(w.source.Levels()) - 1); err != nil {
		t.Fatal(err)
	}
	w.events = nil
	w.drain()
	if n := len(w.of(event.Allocation)); n != 0 {
		t.Errorf("%d blocks are told of after the probes went off", n)
	}
}
