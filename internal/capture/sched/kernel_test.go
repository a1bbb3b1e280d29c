package sched

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/ring"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// What event.go says of off-CPU intervals is what the programs were compiled with.
func TestConstantsEqualBTF(t *testing.T) {
	want := map[string]map[string]uint64{
		"offcpu_flags": {
			"OFFCPU_MARK":            uint64(event.Mark),
			"OFFCPU_PREEMPTED":       uint64(event.Preempted),
			"OFFCPU_UNINTERRUPTIBLE": uint64(event.Uninterruptible),
			"OFFCPU_FAULT":           uint64(event.MajorFault),
			"OFFCPU_IRQ":             uint64(event.FromIRQ),
			"OFFCPU_OPEN":            uint64(event.Open),
		},
		"offcpu_mark": {
			"OFFCPU_BORN": uint64(event.Born), "OFFCPU_DIED": uint64(event.Died), "OFFCPU_WAITED": uint64(event.Waited),
			"OFFCPU_RUNS": uint64(event.Runs), "OFFCPU_SHORT": uint64(event.Short),
		},
	}
	for _, arch := range []string{"x86", "arm64"} {
		spec, err := btf.LoadSpec("../../../bpf/sched_" + arch + "_bpfel.o")
		must.NoError(t, err)
		for name, values := range want {
			var enum *btf.Enum
			if err := spec.TypeByName(name, &enum); err != nil {
				t.Fatalf("%s: enum %s: %v", arch, name, err)
			}
			got := map[string]uint64{}
			for _, v := range enum.Values {
				got[v.Name] = v.Value
			}
			if !maps.Equal(got, values) {
				t.Errorf("%s: enum %s is %v in C and %v in Go", arch, name, got, values)
			}
		}
	}
}

// From 64 bytes on, in any function, kernels since 6.13 put a program's stack where another
// thread on the same CPU can overwrite it (bpf/shapes.h); they round up to 16 bytes.
const maxStack = 48

// sched_switch may have more: it runs with interrupts off, so nothing can come in between.
// In functions so small that 48 bytes are enough it takes 10% longer.
func stackOf(program string) int {
	if program == "sched_switch" {
		return 192
	}
	return maxStack
}

var stackDepth = regexp.MustCompile(`stack depth ([0-9+]+)`)

// The verifier takes the programs as for older kernels as well, and says how much stack they use.
func TestStackAsVerified(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	for _, opts := range []Options{{Budget: 1}, {Budget: 1, noCast: true}} {
		spec, err := bpf.LoadSched()
		must.NoError(t, err)
		must.NoError(t, setConstants(spec, opts))
		all, err := ebpf.NewCollectionWithOptions(spec,
			ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats}})
		if err != nil {
			t.Fatalf("%+v", err)
		}
		defer all.Close()
		for name, prog := range all.Programs {
			found := stackDepth.FindStringSubmatch(prog.VerifierLog)
			if found == nil {
				t.Fatalf("%s: the verifier says nothing of its stack", name)
			}
			for _, one := range strings.Split(found[1], "+") {
				if n, err := strconv.Atoi(one); err != nil || n > stackOf(name) {
					t.Errorf("%s: stack depth %s, at most %d for each function", name, found[1], stackOf(name))
				}
			}
		}
	}
}

// Fields are looked for in the kernel's type of that name. A typedef of our own has none, and the program is
// refused where it uses one: on the architecture that has it.
func TestFieldsAreOfStructures(t *testing.T) {
	objects, err := filepath.Glob("../../../bpf/*_bpfel.o")
	if err != nil || len(objects) < 10 {
		t.Fatalf("%d objects of BPF programs: %v", len(objects), err)
	}
	for _, object := range objects {
		spec, err := ebpf.LoadCollectionSpec(object)
		must.NoError(t, err)
		for name, prog := range spec.Programs {
			for _, instruction := range prog.Instructions {
				if r := btf.CORERelocationMetadata(&instruction); r != nil && strings.Contains(r.String(), "Typedef") {
					t.Errorf("%s: %s: %v", object, name, r)
				}
			}
		}
	}
}

func TestCallBits(t *testing.T) {
	bits := callBits([]int{0, 63, 64, 511, 512, -1})
	if want := [8]uint64{1 | 1<<63, 1, 0, 0, 0, 0, 0, 1 << 63}; bits != want {
		t.Errorf("bits %x, want %x", bits, want)
	}
}

func newSource(t *testing.T) *Source {
	t.Helper()
	needs.Root(t, "it loads BPF programs")
	rings, err := ring.New(ring.Options{Bytes: 8 << 20})
	must.NoError(t, err)
	t.Cleanup(func() { _ = rings.Close() })
	s, err := New(rings, Options{})
	must.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// A process that ends leaves nothing behind in the kernel's maps, however many threads it had.
func TestNothingStaysBehind(t *testing.T) {
	s := newSource(t)
	cmd := exec.Command("sh", "-c", "read x; sleep 0.01 & sleep 0.02 & wait")
	in, err := cmd.StdinPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	p, err := proc.Describe(cmd.Process.Pid)
	must.NoError(t, err)
	defer p.Close()
	must.NoError(t, s.Follow(p))
	if n := count(t, s); n != 1 {
		t.Errorf("%d threads are known of a shell that has one", n)
	}
	_, _ = in.Write([]byte("\n"))
	_ = cmd.Wait()
	s.Forget(p)
	for range 200 { // its last switch may be still to come
		s.Complete(1 << 63)
		if len(s.leaving) == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if n := count(t, s); n != 0 {
		t.Errorf("%d threads are known after the end", n)
	}
	var pid uint32
	var process bpf.SchedFollowedProcess
	for iter := s.kernel.objects.Followed.Iterate(); iter.Next(&pid, &process); {
		t.Errorf("pid %d is still followed", pid)
	}
	var passes uint8
	if err := s.kernel.objects.Filter.Lookup(s.kernel.slot(p.PID), &passes); err != nil || passes != 0 {
		t.Errorf("the filter still lets the process pass (%d, %v)", passes, err)
	}
}

// TestThreadsFewAndMany: threads that are looked up one by one are those that are in the array of all.
func TestThreadsFewAndMany(t *testing.T) {
	s := newSource(t)
	// Threads of no process that is there, with a place of their own and, the last one, without.
	const last = 3000
	elsewhere := bpf.SchedThreadState{Tid: last + s.kernel.room(), Tgid: 1 << 30, Switches: 1}
	must.NoError(t, s.kernel.objects.Overflow.Put(elsewhere.Tid, &elsewhere))
	known := 1
	for tid := uint32(1); tid <= last; tid++ {
		state := bpf.SchedThreadState{Tid: tid, Tgid: 1 << 30, Switches: 1}
		must.NoError(t, errors.Join(
			s.kernel.objects.Owners.Put(tid, tid), s.kernel.objects.Threads.Put(tid, &state),
		))
		known++
		if tid > 2 && tid < fewThreads-1 || tid > fewThreads+1 && tid < last {
			continue
		}
		seen := map[uint32]bool{}
		if err := s.kernel.threads(func(t *bpf.SchedThreadState) { seen[t.Tid] = true }); err != nil ||
			len(seen) != known {
			t.Errorf("%d threads are read of %d: %v", len(seen), known, err)
		}
		s.summed = time.Time{}
		if n := s.Runs(1 << 30).Count; n != uint64(known) {
			t.Errorf("%d switches of %d threads, want one of each", n, known)
		}
	}
}

func count(t *testing.T, s *Source) int {
	t.Helper()
	n := 0
	must.NoError(t, s.kernel.threads(func(*bpf.SchedThreadState) { n++ }))
	return n
}

// fakeProc makes the part of /proc that names are read from.
func fakeProc(t *testing.T, fd, fdinfo, target string) *names {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"/7/fd", "/7/fdinfo", "/9/task/10"} {
		must.NoError(t, os.MkdirAll(dir+d, 0o755))
	}
	must.NoError(t, os.Symlink(target, dir+"/7/fd/"+fd))
	must.NoError(t, os.WriteFile(dir+"/7/fdinfo/"+fd, []byte(fdinfo), 0o644))
	must.NoError(t, os.WriteFile(dir+"/9/task/10/comm", []byte("worker\n"), 0o644))
	return newNames(dir, defaultKeep)
}

func reading(fd, inode uint64) event.Event {
	return event.Event{
		Kind: event.OffCPU,
		PID:  7,
		TID:  7,
		Func: uint16(fileCalls()[0]),
		Args: [4]uint64{1, 9<<32 | 10, fd, inode},
	}
}

func TestNames(t *testing.T) {
	const info = "pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t4711\n"
	n := fakeProc(t, "3", info, "pipe:[4711]")
	n.watch(7, true)
	n.observe([]event.Event{reading(3, 4711), reading(3, 4712), reading(4, 4711)})
	objects, otherThreads := n.allObjects(), n.allOtherThreads()
	if len(objects) != 1 || objects[0].Name != "pipe:[4711]" || objects[0].Inode != 4711 || objects[0].PID != 7 {
		t.Errorf("objects %+v: only the descriptor whose inode is right has a name", objects)
	}
	if len(otherThreads) != 1 || otherThreads[0].Name != "worker" || otherThreads[0].PID != 9 ||
		otherThreads[0].TID != 10 {
		t.Errorf("other threads %+v", otherThreads)
	}
	n.watch(7, true) // another process with that number
	if left := n.allObjects(); len(left) != 0 {
		t.Errorf("objects of the process before: %+v", left)
	}
}

func TestNamesAreBounded(t *testing.T) {
	n := fakeProc(t, "3", strings.Repeat("x", 5000)+"\nino:\t1\n", strings.Repeat("/a", 2000))
	if ino := n.inode(7, "3"); ino != 0 {
		t.Errorf("inode %d from beyond what is read", ino)
	}
	n.watch(7, true)
	batch := make([]event.Event, 0, 3*maxOtherThreads)
	for i := range uint64(3 * maxOtherThreads) {
		e := reading(i, i+1)
		e.Args[1] = (i+100)<<32 | i
		batch = append(batch, e)
		if len(batch) == 256 {
			n.observe(batch)
			batch = batch[:0]
		}
	}
	others, seen := len(n.otherThreads)+len(n.before), len(n.files[7].seen)
	if others > maxOtherThreads || seen > maxObjects || n.count != seen {
		t.Errorf("%d other threads, %d files, counted as %d", others, seen, n.count)
	}
}

// TestNamesOfEndedProcesses: what is known of processes that come and go is no more than what recordings still show.
func TestNamesOfEndedProcesses(t *testing.T) {
	const each = time.Second // from one process to the next
	n := fakeProc(t, "3", "pos:\t0\nino:\t4711\n", "pipe:[4711]")
	now := time.Now()
	n.clock = func() time.Time { return now }
	kept := int(n.keep/each) + 2
	n.watch(7, true)
	for i := range uint32(5000) {
		pid := 100 + i
		n.watch(pid, true)
		e, own := reading(3, 4711), reading(uint64(i), 4712)
		e.Args[1], own.PID = uint64(pid+1)<<32|uint64(pid+1), pid
		n.observe([]event.Event{e, own})
		n.watch(pid, false)
		n.observe([]event.Event{own}) // read from the ring when the process has ended
		now = now.Add(each)
		if others := len(n.otherThreads) + len(n.before); others > 2*kept {
			t.Fatalf("after %d processes %d other threads are kept", i, others)
		}
		if len(n.files) > kept || len(n.ended) > kept || n.count > kept || len(n.watched) != 1 {
			t.Fatalf("after %d processes: of %d files are kept, %d ended, %d in all, %d watched",
				i, len(n.files), len(n.ended), n.count, len(n.watched))
		}
	}
	if o := n.allObjects(); len(o) != 1 || o[0].PID != 7 {
		t.Errorf("objects %+v, want that of the process that runs", o)
	}
}

// BenchmarkObserve measures what an event costs of which all names are known.
func BenchmarkObserve(b *testing.B) {
	n := newNames(procRoot, defaultKeep)
	n.watch(7, true)
	batch := make([]event.Event, 1024)
	for i := range batch {
		batch[i] = reading(3, uint64(4711+i%16))
		batch[i].Args[1] += uint64(i % 16)
	}
	for range 4 {
		n.observe(batch)
	}
	for b.Loop() {
		n.observe(batch)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(batch)), "ns/event")
}
