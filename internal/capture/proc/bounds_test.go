package proc

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// fakeRing is a ring as the kernel fills it, but in plain memory.
type fakeRing struct {
	mapRing
	head uint64
}

func newFakeRing() *fakeRing {
	r := &fakeRing{mapRing: mapRing{
		page: &unix.PerfEventMmapPage{}, data: make([]byte, 8192), scratch: make([]byte, 1<<16),
	}}
	return r
}

// put writes a record that may wrap around the end.
func (r *fakeRing) put(record []byte) {
	for i, b := range record {
		r.data[(r.head+uint64(i))%uint64(len(r.data))] = b
	}
	r.head += uint64(len(record))
	r.page.Data_head = r.head
}

func mmap2(pid uint32, name string, at uint64) []byte {
	for name += "\x00"; len(name)%8 != 0; {
		name += "\x00"
	}
	record := make([]byte, mmap2Name, mmap2Name+len(name)+8)
	binary.NativeEndian.PutUint32(record, unix.PERF_RECORD_MMAP2)
	binary.NativeEndian.PutUint16(record[6:], uint16(mmap2Name+len(name)+8))
	binary.NativeEndian.PutUint32(record[8:], pid)
	return binary.NativeEndian.AppendUint64(append(record, name...), at)
}

func (r *fakeRing) take() (got []string, lost bool) {
	lost = r.drain(func(pid uint32, at uint64, _ []byte) { got = append(got, fmt.Sprint(pid, "@", at)) })
	return got, lost
}

func TestMapRing(t *testing.T) {
	r := newFakeRing()
	if got, lost := r.take(); got != nil || lost {
		t.Errorf("empty: %v %v", got, lost)
	}
	for round := range uint64(200) { // around the ring several times, in all alignments
		r.put(mmap2(1, "/lib/"+strings.Repeat("x", int(round)), round))
		r.put(mmap2(2, "//anon", round))
		r.put(mmap2(3, "[vdso]", round))
		r.put(mmap2(4, "//toolong", round))
		got, lost := r.take()
		if want := fmt.Sprintf("[1@%d 4@%d]", round, round); fmt.Sprint(got) != want || lost {
			t.Fatalf("round %d: %v %v, want %s", round, got, lost, want)
		}
		if r.page.Data_tail != r.head {
			t.Fatalf("tail %d, head %d", r.page.Data_tail, r.head)
		}
	}
}

func TestMapRingLost(t *testing.T) {
	r := newFakeRing()
	lostRecord := make([]byte, 24)
	binary.NativeEndian.PutUint32(lostRecord, unix.PERF_RECORD_LOST)
	binary.NativeEndian.PutUint16(lostRecord[6:], 24)
	r.put(lostRecord)
	r.put(mmap2(1, "/x", 5))
	if got, lost := r.take(); len(got) != 1 || !lost {
		t.Errorf("with a lost record: %v %v", got, lost)
	}
	for r.head-r.page.Data_tail <= uint64(len(r.data)-maxMapRecord) {
		r.put(mmap2(1, "/x", 5))
	}
	if _, lost := r.take(); !lost {
		t.Error("a ring with no room for another record may have lost one")
	}
	r.put(make([]byte, 16)) // of size 0: it would never end
	r.put(mmap2(1, "/x", 5))
	if got, lost := r.take(); len(got) != 0 || !lost || r.page.Data_tail != r.head {
		t.Errorf("nonsense: %v %v", got, lost)
	}
	r.put([]byte{0, 0, 0, 0, 0, 0, 255, 255}) // longer than what was written
	if _, lost := r.take(); !lost || r.page.Data_tail != r.head {
		t.Error("a record beyond the head")
	}
}

func TestQueue(t *testing.T) {
	q := newQueue(3)
	a, b := &Process{PID: 1}, &Process{PID: 2}
	q.push(Change{Mapped, a, 1})
	q.push(Change{Mapped, a, 2}) // the first says it all
	q.push(Change{Mapped, b, 3})
	q.push(Change{Exited, b, 4})
	q.push(Change{Exited, a, 5}) // no room
	if len(q.items) != 3 || q.dropped != 1 || q.items[0].At != 1 {
		t.Errorf("%d items, %d dropped, first %+v", len(q.items), q.dropped, q.items[0])
	}
	q.pop()
	q.push(Change{Mapped, a, 6}) // taken, so that it is news
	if len(q.items) != 3 || q.items[2].At != 6 {
		t.Errorf("%+v", q.items)
	}
	for len(q.items) > 0 {
		q.pop()
	}
	if len(q.mapped) != 0 {
		t.Errorf("still marked: %v", q.mapped)
	}
}

func TestTableForgets(t *testing.T) {
	const keep = 100
	table := newTable(keep, 3)
	for pid := range uint32(5) {
		table.bury(table.add(&Process{PID: pid, Born: uint64(pid)}), 1000, int32(pid))
	}
	if len(table.dead) != 3 || table.forgotten != 2 || len(table.live) != 0 {
		t.Errorf("%d dead, %d forgotten", len(table.dead), table.forgotten)
	}
	if all := table.snapshot(); len(all) != 3 || all[0].PID != 2 || all[0].Died != 1000 || all[2].ExitCode != 4 {
		t.Errorf("%+v", all)
	}
	table.expire(1000 + keep)
	if len(table.dead) != 3 {
		t.Error("dropped too soon")
	}
	if table.expire(1001 + keep); len(table.dead) != 0 || table.forgotten != 2 {
		t.Errorf("%d dead, %d forgotten", len(table.dead), table.forgotten)
	}
}

// TestSkippedOfEndedTargets: however many targets come and go, what is counted of them goes with what is known of them.
func TestSkippedOfEndedTargets(t *testing.T) {
	const keep = 100
	w := &Watcher{table: newTable(keep, maxDead), skipped: map[uint32]uint64{}}
	w.table.add(&Process{PID: 1, Root: 1})
	w.skipped[1] = 1
	for i := range uint32(5000) {
		pid, at := 10+i, 1000+uint64(i)
		e := w.table.add(&Process{PID: pid, Root: pid})
		w.skipped[pid] = 1
		w.table.bury(e, at, 0)
		w.forgetSkipped()
		if len(w.skipped) > keep+2 || w.skipped[pid] != 1 || w.skipped[1] != 1 {
			t.Fatalf("after %d targets %d are counted, and %d of the last, %d of the one that runs",
				i, len(w.skipped), w.skipped[pid], w.skipped[1])
		}
	}
}

func TestThreadsAreBounded(t *testing.T) {
	e := &entry{p: &Process{PID: 1}, threads: map[uint32]string{}}
	for round := range uint32(3) {
		names := make(map[uint32]string)
		for i := range uint32(3000) {
			names[round*3000+i] = "x"
		}
		e.addThreads(names)
	}
	if len(e.threads) != maxThreads || e.threads[8999] != "x" {
		t.Errorf("%d names", len(e.threads))
	}
}

// A cmdline that never answers costs its place and the deadline, and the next ones nothing.
func TestCmdlineThatHangs(t *testing.T) {
	root := t.TempDir()
	must.NoError(t, os.Mkdir(root+"/7", 0o700))
	must.NoError(t, unix.Mkfifo(root+"/7/cmdline", 0o600))
	fs := newProcfs(root)
	for range slowReads + 3 {
		if got := fs.cmdline(7); got != "" {
			t.Errorf("%q", got)
		}
	}
	if len(fs.slots) != slowReads {
		t.Errorf("%d reads hang, want %d", len(fs.slots), slowReads)
	}
	// A writer that comes and goes lets them go, whether they open or read.
	deadline := time.Now().Add(testTimeout)
	for len(fs.slots) > 0 && time.Now().Before(deadline) {
		f, err := os.OpenFile(root+"/7/cmdline", os.O_RDWR, 0)
		must.NoError(t, err)
		f.Close()
		time.Sleep(time.Millisecond)
	}
	if len(fs.slots) != 0 {
		t.Errorf("%d places are not free again", len(fs.slots))
	}
}

func TestCmdlineIsBounded(t *testing.T) {
	root := t.TempDir()
	must.NoError(t, os.Mkdir(root+"/7", 0o700))
	text := "a\x00b c\x00\xff\x00" + strings.Repeat("x", 10000)
	must.NoError(t, os.WriteFile(root+"/7/cmdline", []byte(text), 0o600))
	got := newProcfs(root).cmdline(7)
	if len(got) != maxCmdline || !strings.HasPrefix(got, "a b c ? xxx") {
		t.Errorf("%d bytes, %.20q", len(got), got)
	}
}

func TestBorn(t *testing.T) {
	if got := born(0); got != 0 {
		t.Errorf("at tick 0: %d", got)
	}
	if got := born(1 << 63); got != 0 {
		t.Errorf("at a tick that overflows: %d", got)
	}
	// In the clock of events, this very process was born before now.
	p := described(t, os.Getpid())
	if now := monotonic(); p.Born == 0 || p.Born > now || p.Born+asleep() < p.StartTime*nsPerTick {
		t.Errorf("born at %d, tick %d, now is %d", p.Born, p.StartTime, now)
	}
}
