package gpu

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/procfile"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// newTestDecoder decodes for a process that has existed for ever; launches are function 5.
func newTestDecoder(pid uint32) decoder {
	index := func(name string) (uint16, bool) { return 5, name == "cuLaunchKernel" }
	return decoder{
		tables: &tables{calls: newCallTable(index), kernels: newNames(), ranges: newNames()},
		facts:  newFacts(pid), tids: proc.NewTIDs(&proc.Process{PID: pid, NSPID: pid}), pid: pid,
	}
}

// openedReader is a reader of a fresh ring of pr.
func openedReader(t *testing.T, pr *producer, slots int) *reader {
	t.Helper()
	fd := pr.ring(slots, "")
	r, err := openFD(pr.p, fd, uint64(slots))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.close() })
	r.store64(ringHeartbeat, clock.Monotonic()+1e12)
	return newReader(r, newTestDecoder(pr.p.PID))
}

// openFD opens the ring behind a descriptor.
func openFD(p *proc.Process, fd int, slots uint64) (*ring, error) {
	m, err := procfile.Descriptor(p.PID, fd)
	if err != nil {
		return nil, err
	}
	return openRing(p, m, slots)
}

// TestReadsEverythingOnce has 8 threads of a C process write 80,000 kernels through a ring of
// 1,024 slots: each must come out once, those of one thread in order.
func TestReadsEverythingOnce(t *testing.T) {
	pr := startProducer(t)
	r := openedReader(t, pr, 1024)
	const threads, each = 8, 10_000
	pr.do("name 1 0 _ZN5hello6kernelEv")
	pr.send(fmt.Sprintf("kernels %d %d 1", threads, each))
	var got collector
	eventually(t, "all kernels have come", func() bool {
		r.read(clock.Monotonic(), false, got.emit)
		return len(got.events) >= threads*each
	})
	pr.until("done")
	r.read(clock.Monotonic(), false, got.emit)
	if len(got.events) != threads*each {
		t.Fatalf("%d events, want %d", len(got.events), threads*each)
	}
	next := map[uint64]uint64{}
	for i, e := range got.events {
		thread, number := e.Args[3], e.Args[2]
		if number != next[thread] {
			t.Fatalf("event %d: kernel %d of thread %d, want %d", i, number, thread, next[thread])
		}
		next[thread]++
		if e.PID != pr.p.PID || e.Kind != event.Kernel || e.Dur != 500 || e.TID != uint32(thread)+7 || e.Ret != 1 ||
			e.Flags != event.Timed {
			t.Fatalf("event %d: %+v", i, e)
		}
	}
	if c := r.facts.total(); c.malformed != 0 || c.kernels != threads*each || c.events != threads*each {
		t.Errorf("counts are %+v", c)
	}
}

func TestNamesArriveWhole(t *testing.T) {
	pr := startProducer(t)
	r := openedReader(t, pr, 4096)
	var got collector
	for n, length := range []int{1, 15, 16, 22, 58, 59, 60, 118, 119, 4000} {
		text := strings.Repeat(string(rune('a'+n)), length)
		pr.do(fmt.Sprintf("name %d 0 %s", n+1, text))
		r.read(clock.Monotonic(), false, got.emit)
		number := get(r.namer.kernels, int32(n+1))
		d, _, ok := r.tables.kernels.row(number)
		if !ok || d.text != text || d.registers != 32 || d.staticShared != 1024 || d.local != 16 {
			t.Errorf("a name of %d bytes became number %d: %q", length, number, d.text)
		}
	}
	rows, at := r.tables.kernels.kernels([]int32{3, 1, 99})
	if len(rows) != 2 || at[3] != 1 || at[1] != 2 || rows[1].Name != "a" {
		t.Errorf("kernels are %v at %v", rows, at)
	}
}

func TestKernelNamesAreDemangled(t *testing.T) {
	n := newNames()
	i := n.add(
		proc.Payer{},
		description{
			text: "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEENS_6detail5ArrayIPcLi1EEEEEviT0_T1_",
		},
	)
	rows, _ := n.kernels([]int32{i})
	if len(rows) != 1 || !strings.Contains(rows[0].Name, "at::native::vectorized_elementwise_kernel<4") {
		t.Errorf("the name is %+v", rows)
	}
}

// TestNamesOfUsers: one user's kernels leave room for the next one's.
func TestNamesOfUsers(t *testing.T) {
	n, greedy, honest := newNames(), proc.Payer{UID: 7}, proc.Payer{UID: 8}
	for i := range maxNames {
		if number := n.add(greedy, description{text: strconv.Itoa(i)}); (number == 0) != (i >= maxNames/2) {
			t.Fatalf("name %d has number %d", i, number)
		}
	}
	if n.add(honest, description{text: "gemm"}) == 0 {
		t.Error("a user has no room because another one took it all")
	}
	if n.add(greedy, description{text: "gemm"}) == 0 {
		t.Error("a known name has no number")
	}
}

func TestCallsCarryFunctionAndCorrelation(t *testing.T) {
	pr := startProducer(t)
	r := openedReader(t, pr, 1024)
	pr.send("thread")
	var tid uint32
	if _, err := fmt.Sscanf(pr.until("thread"), "thread %d", &tid); err != nil {
		t.Fatal(err)
	}
	pr.until("done")
	pr.do("call 307 77", "call 9999 1", "call 3 1")
	var got collector
	r.read(clock.Monotonic(), false, got.emit)
	if len(got.events) != 1 {
		t.Fatalf("%d events, want the one launch: %+v", len(got.events), got.events)
	}
	if e := got.events[0]; e.Func != 5 || e.Ret != 77 || e.TID != tid || e.Flags != event.Timed|event.Correlated ||
		e.Dur != 5 {
		t.Errorf("the launch is %+v", e)
	}
	if c := r.facts.total(); c.malformed != 2 {
		t.Errorf("%d slots were refused, want the 2 of unknown functions", c.malformed)
	}
}

// TestStuckSlot: a slot that is reserved and never written must hold the others up for a
// while only, and not at all when nobody writes any more.
func TestStuckSlot(t *testing.T) {
	pr := startProducer(t)
	r := openedReader(t, pr, 1024)
	pr.do("sync", "stuck", "sync")
	var got collector
	begin := clock.Monotonic()
	r.read(begin, false, got.emit)
	r.read(begin+stuck-1, false, got.emit)
	if len(got.events) != 1 {
		t.Fatalf("%d events before the slot was given up, want 1", len(got.events))
	}
	r.read(begin+stuck, false, got.emit)
	if len(got.events) != 2 {
		t.Fatalf("%d events after the slot was given up, want 2", len(got.events))
	}
	pr.do("stuck", "sync")
	r.read(begin+stuck+1, true, got.emit)
	if c := r.facts.total(); len(got.events) != 3 || c.malformed != 2 {
		t.Errorf("%d events and %d slots given up at the end, want 3 and 2", len(got.events), c.malformed)
	}
}

func TestTimesOutOfBoundsAreRefused(t *testing.T) {
	d := newTestDecoder(1)
	d.from, d.now = 1000, 2000
	for name, c := range map[string]struct {
		ts, dur uint64
		ok      bool
	}{
		"before the process": {999, 1, false},
		"now":                {2000, 0, true},
		"in the future":      {2000 + future + 1, 0, false},
		"ends in the future": {1500, 500 + future + 1, false},
		"ends just in time":  {1500, 500 + future, true},
		"wraps around":       {1500, ^uint64(0) - 100, false},
	} {
		e := event.Event{TS: c.ts, Dur: c.dur, Kind: event.Kernel}
		if got := d.decode(&e); got != c.ok {
			t.Errorf("%s: taken: %v, want %v", name, got, c.ok)
		}
	}
}

func TestRingIsCheckedBeforeItIsMapped(t *testing.T) {
	for how, want := range map[string]string{"unsealed": "not sealed", "foreign": "another process"} {
		pr := startProducer(t)
		fd := pr.ring(1024, how)
		if _, err := openFD(pr.p, fd, 1024); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", how, err, want)
		}
	}
	pr := startProducer(t)
	fd := pr.ring(1024, "")
	if _, err := openFD(pr.p, fd, 2048); err == nil {
		t.Error("a ring of another size than asked for was taken")
	}
	for _, fd := range []int{0, 1} { // pipes
		if _, err := openFD(pr.p, fd, 1024); err == nil || !strings.Contains(err.Error(), "no shared memory") {
			t.Errorf("a pipe was taken for a ring: %v", err)
		}
	}
}

// TestGatesOfADeadDaemon: whoever takes over an agent takes back what the last daemon said of its gates.
func TestGatesOfADeadDaemon(t *testing.T) {
	pr := startProducer(t)
	pr.ring(1024, "")
	left, err := existing(pr.p)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = left.close() }()
	left.store32(ringArmed, 7)
	left.store32(ringGated, 1)
	s := &Source{}
	r, err := s.takeOver(t.Context(), pr.p)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.close() }()
	if armed, gated := left.load32(ringArmed), left.load32(ringGated); armed != 0 || gated != 0 {
		t.Errorf("gates armed for ask %d, holding threads: %d", armed, gated)
	}
}

// TestFindsWhatIsThere: a ring is found while its file is open, and when it is only mapped.
func TestFindsWhatIsThere(t *testing.T) {
	pr := startProducer(t)
	if _, err := existing(pr.p); !errors.Is(err, errNoRing) {
		t.Fatalf("without a ring: %v", err)
	}
	pr.ring(1024, "")
	for _, where := range []string{"open and mapped", "mapped only"} {
		r, err := existing(pr.p)
		if err != nil {
			t.Fatalf("%s: %v", where, err)
		}
		if r.slots != 1024 {
			t.Errorf("%s: a ring of %d slots", where, r.slots)
		}
		_ = r.close()
		pr.do("closefd")
	}
}
