package cudaapi

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/uprobe/elffile"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
	"github.com/inferscope/inferscope/internal/testkit/nvlibs"
)

// TestMain lets this program be the helper that reads communicators.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == HelperArgument {
		if err := RunHelper(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestRankOfNCCL: in NVIDIA's library the getters show where struct ncclComm of src/include/comm.h has its rank.
func TestRankOfNCCL(t *testing.T) {
	path := nvlibs.Library(t, nvlibs.NCCL)
	file, err := os.Open(path)
	must.NoError(t, err)
	t.Cleanup(func() { file.Close() })
	info, err := file.Stat()
	must.NoError(t, err)
	c, err := parse(file, info.Size())
	must.NoError(t, err)
	want := rankField{0x1044d0, 22809} // offsetof(struct ncclComm, rank) in its release
	if c.ranks != want {
		t.Errorf("%+v, want %+v", c.ranks, want)
	}
}

// TestFieldOf has code as compilers make it of getters, and code that is none.
func TestFieldOf(t *testing.T) {
	for _, c := range []struct {
		what, code string
		want       uint64
	}{
		{"mov eax, [rdi+0x20]; mov [rsi], eax; xor eax, eax; ret", "8b4720890631c0c3", 0x20},
		{
			"push r14; mov r14, rsi; push r13; mov r13, rdi; call; mov eax, [r13+0x1044d0]; mov [r14], eax; ret",
			"41564989f641554989fde8000000004" + "18b85d0441000418906c3", 0x1044d0,
		},
		{"to [r13+0]", "4989f54989fce800000000418b8424e034000041894500c3", 0x34e0},
		{"rdi after a call", "e8000000008b47208906c3", 0},
		{"of another pointer", "8b43208906c3", 0},
		{"two fields", "8b472089068b47248906c3", 0},
		{"one field twice", "8b472089068b47208906c3", 0x20},
		{"overwritten by a call", "4989f54989fc418b442420e80000000041894500c3", 0},
		{"nothing", "", 0},
		{"no code", "060606", 0},
	} {
		code, err := hex.DecodeString(c.code)
		must.NoError(t, err)
		if got := fieldOfAMD64(code); got != c.want {
			t.Errorf("%s: %#x, want %#x", c.what, got, c.want)
		}
	}
}

// TestFieldOfARM64 has instructions as the getter of NVIDIA's 2.28.9 has them.
func TestFieldOfARM64(t *testing.T) {
	const (
		comm, out = 0xaa0003f6, 0xaa0103f7 // mov x22, x0; mov x23, x1
		bl, blr   = 0x94001655, 0xd63f0040
		add       = 0x914412d6 // add x22, x22, #0x104, lsl #12
		load      = 0xb944d2c1 // ldr w1, [x22, #0x4d0]
		store     = 0xb90002e1 // str w1, [x23]
	)
	for what, c := range map[string]struct {
		code []uint32
		want uint64
	}{
		"NVIDIA's":              {[]uint32{comm, out, bl, add, load, store}, 0x1044d0},
		"a small one":           {[]uint32{0xb9402002, 0xb9000022}, 0x20}, // ldr w2, [x0, #32]; str w2, [x1]
		"x0 after a call":       {[]uint32{blr, 0xb9402002, 0xb9000022}, 0},
		"overwritten by a call": {[]uint32{comm, out, add, load, blr, store}, 0},
		"two fields":            {[]uint32{comm, out, load, store, add, load, store}, 0},
		"nothing is stored":     {[]uint32{comm, out, add, load}, 0},
		"of another pointer":    {[]uint32{out, add, load, store}, 0},
		"nothing":               {nil, 0},
	} {
		var code []byte
		for _, op := range c.code {
			code = binary.LittleEndian.AppendUint32(code, op)
		}
		if got := fieldOfARM64(code); got != c.want {
			t.Errorf("%s: %#x, want %#x", what, got, c.want)
		}
	}
}

// TestFirstGetterCounts: of many symbols of one name, as a hostile library has them, one is decoded.
func TestFirstGetterCounts(t *testing.T) {
	code, err := hex.DecodeString("8b47208906c3" + "8b47248906c3" + "8b47288906c3" + "8b47308906c3")
	must.NoError(t, err)
	var functions []elffile.Function
	for i, name := range append(slices.Clone(getters), getters...) {
		functions = append(functions, elffile.Function{Name: name, Offset: uint64(min(i, 3) * 6), Size: 6})
	}
	if got := findRank(bytes.NewReader(code), elf.EM_X86_64, functions); got != 0x20 {
		t.Errorf("%#x, want the fields that the first ones return", got)
	}
}

// ncclComm is a communicator as a library might have it.
type ncclComm struct {
	magic, other, hash  uint64
	rank, ranks, device int32
}

const reduce, create, destroy = 3, 5, 4

// commWorld has communicators in this process's memory, and calls that use them.
type commWorld struct {
	*Source
	t      *testing.T
	p      *proc.Process
	memory *[4]ncclComm
	now    uint64
	field  rankField
}

func newCommWorld(t *testing.T, read commReader) *commWorld {
	t.Helper()
	p, err := proc.Describe(os.Getpid())
	must.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	mapped, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(mapped) })
	w := &commWorld{
		Source: &Source{procs: map[proc.ID]*process{}, opts: Options{Keep: time.Minute}}, t: t, p: p,
		memory: (*[4]ncclComm)(unsafe.Pointer(&mapped[0])), now: clock.Monotonic(),
		field: rankField{uint64(unsafe.Offsetof(ncclComm{}.rank)), 22809},
	}
	*w.memory = [4]ncclComm{
		{ncclMagic, 0, 0xae94, 3, 8, 1},
		{ncclMagic, 0, 0xae95, 0, 2, 0},
		{1, 0, 0xae96, 0, 2, 0},
		{ncclMagic, 0, 0, 0, 2, 0},
	}
	w.comms.read, w.comms.keep = read, time.Minute
	for index, name := range map[uint16]string{
		reduce: "ncclAllReduce", create: "ncclCommInitRank", destroy: "ncclCommDestroy",
	} {
		row, ok := cuda.Match(name)
		if !ok {
			t.Fatal(name)
		}
		w.comms.probed(index, &row)
	}
	w.comms.follow(p, w.field)
	return w
}

func (w *commWorld) at(i int) uint64 { return uint64(uintptr(unsafe.Pointer(&w.memory[i]))) }

// observe makes a call of a process.
func (w *commWorld) observe(pid uint32, fn uint16, comm uint64) {
	e := event.Event{TS: w.now, Kind: event.Call, PID: pid, Func: fn, Flags: event.Timed | event.Deref}
	e.Args[0] = comm
	if fn == reduce {
		e.Args = [4]uint64{1000, comm}
	}
	w.Observe([]event.Event{
		{Kind: event.Call, Func: 900}, {Kind: event.Sample, PID: pid, Func: reduce, Args: [4]uint64{0, w.at(1)}}, e,
	})
}

// call makes a call, and waits until nothing is read.
func (w *commWorld) call(fn uint16, comm uint64) {
	w.t.Helper()
	w.observe(w.p.PID, fn, comm)
	must.Become(w.t, "nothing is read", w.idle)
}

func (w *commWorld) idle() bool {
	w.comms.mu.Lock()
	defer w.comms.mu.Unlock()
	for _, q := range w.comms.procs {
		if len(q.wanted) > 0 {
			return false
		}
	}
	return len(w.comms.reading) == 0
}

func (w *commWorld) row(i int) recording.Communicator {
	c := &w.memory[i]
	hash := binary.LittleEndian.AppendUint64(nil, c.hash)
	return recording.Communicator{
		PID: w.p.PID, Address: w.at(i), Hash: hex.EncodeToString([]byte{hash[1], hash[0]}), Rank: int(c.rank),
		Ranks: int(c.ranks), GPU: int(c.device),
	}
}

func (w *commWorld) check(what string, want ...recording.Communicator) {
	w.t.Helper()
	own := func(id proc.ID) bool { return id == w.p.ID() }
	if diff := cmp.Diff(want, w.Communicators(own)); diff != "" {
		w.t.Errorf("%s: (-want +got)\n%s", what, diff)
	}
}

// readHere reads as a helper does.
func readHere(questions []commQuestion) (out []commAnswer) {
	for i := range questions {
		out = append(out, questions[i].read()...)
	}
	return out
}

// TestCommunicators: communicators are read when they are first used or made, and again when their address was.
func TestCommunicators(t *testing.T) {
	w := newCommWorld(t, readHere)
	w.call(reduce, w.at(0))
	w.call(reduce, w.at(2))
	w.call(reduce, 0)
	w.call(reduce, 1<<40)
	w.check("one that is none, and no address", w.row(0))
	w.call(create, w.at(1))
	w.check("one that was made", w.row(0), w.row(1))
	w.memory[2].magic = ncclMagic
	w.call(reduce, w.at(2))
	w.check("one that was none at first, too soon after", w.row(0), w.row(1))
	w.now += firstWait << 1
	w.call(reduce, w.at(2))
	w.check("one that was none at first", w.row(0), w.row(1), w.row(2))
	before := w.row(0)
	w.memory[0].rank = 4
	w.call(reduce, w.at(0))
	w.check("known ones are not read again", before, w.row(1), w.row(2))
	w.call(destroy, w.at(1))
	w.call(reduce, w.at(1))
	w.check("an address that is used again by the same", before, w.row(1), w.row(2))
	w.call(create, w.at(0))
	w.now += 1000 * firstWait
	w.call(reduce, w.at(0))
	w.check("an address that is used by another one", w.row(1), w.row(2))
	w.call(create, w.at(0))
	w.check("and by the same once more", w.row(1), w.row(2))
}

// TestUnfinishedCommunicator: what a library has not made to its end is read again later.
func TestUnfinishedCommunicator(t *testing.T) {
	w := newCommWorld(t, readHere)
	w.call(create, w.at(3))
	w.check("without a hash")
	w.memory[3].hash, w.memory[3].rank = 0xae97, 1
	w.now += firstWait << 1
	w.call(reduce, w.at(3))
	w.check("with a hash", w.row(3))
}

// TestDoubtedCommunicators: where calls were not seen, communicators are read again when they are used.
func TestDoubtedCommunicators(t *testing.T) {
	w := newCommWorld(t, readHere)
	var lost uint64
	w.comms.lost = func() uint64 { return lost }
	for what, miss := range map[string]func(){
		"events were lost": func() { lost, w.now = lost+1, w.now+lossPeriod },
		"its program was replaced": func() {
			other := *w.p
			other.Execs++
			w.comms.renew(&other)
			w.comms.renew(w.p)
		},
		"the level was off": func() { w.level = levelOff; w.setLevel(levelEach) },
	} {
		w.memory[1].rank = 0
		w.comms.forget(w.p)
		w.comms.ended, w.comms.count = nil, map[uint32]int{}
		w.comms.follow(w.p, w.field)
		w.call(reduce, w.at(1))
		w.check(what+": before", w.row(1))
		w.memory[1].rank = 1
		miss()
		w.call(reduce, w.at(1))
		w.check(what + ": another one may be there now")
	}
}

// TestHashOfReleases: a hash is read where it is known to be in that release.
func TestHashOfReleases(t *testing.T) {
	answer := commAnswer{Magic: ncclMagic, Member: make([]byte, memberBytes)}
	answer.Member[0], answer.Member[hashBytes+fieldBytes] = 0x1f, 1
	for release, want := range map[int]string{0: "", 22809: "1f", 23203: "1f", 23204: ""} {
		if row, ok := (rankField{16, release}).row(&answer); !ok || row.Hash != want {
			t.Errorf("%d: %+v, %v, want %q", release, row, ok, want)
		}
	}
}

// TestReaderThatHangs: nobody waits for a target whose memory cannot be read, and other targets' is.
func TestReaderThatHangs(t *testing.T) {
	release, asked := make(chan struct{}), make(chan uint32, 100)
	w := newCommWorld(t, func(questions []commQuestion) []commAnswer {
		asked <- questions[0].PID
		if questions[0].PID != uint32(os.Getpid()) {
			<-release
		}
		return readHere(questions)
	})
	hostile := &proc.Process{PID: 1<<31 - 1, Root: 1<<31 - 1}
	w.comms.follow(hostile, w.field)
	w.observe(hostile.PID, reduce, w.at(0))
	if pid := <-asked; pid != hostile.PID {
		t.Fatal(pid)
	}
	w.observe(hostile.PID, reduce, w.at(1))
	w.observe(w.p.PID, reduce, w.at(0))
	must.Become(t, "the other target's", func() bool {
		return len(w.Communicators(func(id proc.ID) bool { return id == w.p.ID() })) == 1
	})
	w.check("beside a target that hangs", w.row(0))
	w.Forget(hostile)
	close(release)
	must.Become(w.t, "nothing is read", w.idle)
	if rows := w.Communicators(func(id proc.ID) bool { return id == hostile.ID() }); len(rows) > 0 {
		t.Errorf("of a process that has ended while it was read: %+v", rows)
	}
	for range len(asked) {
		if pid := <-asked; pid == hostile.PID {
			t.Error("a target was read twice at a time")
		}
	}
}

// TestMemoryThatHangs: a helper ends where a target's memory is not served (userfaultfd), and does not begin to read
// that of a file (FUSE).
func TestMemoryThatHangs(t *testing.T) {
	needs.Root(t, "it uses userfaultfd")
	w := newCommWorld(t, helperReader([]string{"/proc/self/exe"}))
	w.comms.pace = time.Millisecond
	page := uint64(os.Getpagesize())
	mapped, err := unix.Mmap(-1, 0, int(page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must.NoError(t, err)
	defer func() { must.NoError(t, unix.Munmap(mapped)) }()
	hanging := uint64(uintptr(unsafe.Pointer(&mapped[0])))
	withhold(t, hanging, page)
	fd, err := unix.MemfdCreate("communicator", unix.MFD_CLOEXEC)
	must.NoError(t, err)
	defer unix.Close(fd)
	must.NoError(t, unix.Ftruncate(fd, int64(page)))
	file, err := unix.Mmap(fd, 0, int(page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	must.NoError(t, err)
	defer func() { must.NoError(t, unix.Munmap(file)) }()
	*(*ncclComm)(unsafe.Pointer(&file[0])) = w.memory[0]
	w.call(reduce, uint64(uintptr(unsafe.Pointer(&file[0]))))
	w.check("of a file")
	began := time.Now()
	w.call(reduce, hanging)
	if took := time.Since(began); took < helperTimeout/2 {
		t.Errorf("the helper did not wait for memory: it took %v", took)
	}
	w.call(reduce, w.at(0))
	w.check("afterwards", w.row(0))
}

// withhold lets whoever reads memory that is not there wait until the test ends.
func withhold(t *testing.T, start, bytes uint64) {
	t.Helper()
	const (
		api      = 0xc018aa3f // UFFDIO_API
		register = 0xc020aa00 // UFFDIO_REGISTER
		version  = 0xaa
		missing  = 1
	)
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		t.Skipf("no userfaultfd: %v", errno)
	}
	t.Cleanup(func() { _ = unix.Close(int(fd)) })
	ask := func(request uintptr, args [4]uint64) {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(unsafe.Pointer(&args))); errno != 0 {
			t.Fatal(errno)
		}
	}
	ask(api, [4]uint64{version})
	ask(register, [4]uint64{start, bytes, missing})
}

// TestCommunicatorsOfATarget: what one target makes up costs no other one its communicators.
func TestCommunicatorsOfATarget(t *testing.T) {
	w := newCommWorld(t, readHere)
	w.call(reduce, w.at(0))
	hostile := &proc.Process{PID: 1<<31 - 1, Root: 1<<31 - 1}
	w.comms.follow(hostile, w.field)
	for i := range uint64(3 * maxComms) {
		w.observe(hostile.PID, reduce, i<<20)
	}
	if n := w.comms.count[hostile.Root]; n > maxComms {
		t.Errorf("%d communicators of one target are kept", n)
	}
	w.check("beside it", w.row(0))
	must.Become(w.t, "nothing is read", w.idle)
	w.Forget(hostile)
	w.Forget(w.p)
	w.check("of a process that has ended", w.row(0))
	if diff := cmp.Diff(map[uint32]int{w.p.Root: 1}, w.comms.count); diff != "" {
		t.Errorf("counted: (-want +got)\n%s", diff)
	}
	w.comms.keep = 0
	w.Forget(w.p)
	w.check("later")
}

// TestProcessThatEndsWhileItIsRead: its pid may be another one's, which was read then.
func TestProcessThatEndsWhileItIsRead(t *testing.T) {
	c := child.Start(t, exec.CommandContext(t.Context(), "cat"))
	p, err := proc.Describe(c.PID)
	must.NoError(t, err)
	defer p.Close()
	ends := false
	w := newCommWorld(t, func(questions []commQuestion) (out []commAnswer) {
		if ends {
			c.Kill()
		}
		for _, q := range questions {
			member := make([]byte, memberBytes)
			member[0], member[hashBytes+fieldBytes] = 1, 1
			out = append(out, commAnswer{q.PID, q.Addresses[0], q.Offsets[0], ncclMagic, member})
		}
		return out
	})
	w.comms.follow(p, w.field)
	for i, address := range []uint64{1 << 20, 2 << 20} {
		w.now = clock.Monotonic()
		w.observe(p.PID, reduce, address)
		must.Become(w.t, "nothing is read", w.idle)
		if rows := w.Communicators(func(id proc.ID) bool { return id == p.ID() }); len(rows) != 1 {
			t.Errorf("reading %d: %+v, want the first one alone", i, rows)
		}
		ends = true
	}
}

// TestCommunicatorsOfAPID: of two processes that had one pid each has its own.
func TestCommunicatorsOfAPID(t *testing.T) {
	w := newCommWorld(t, readHere)
	w.call(reduce, w.at(0))
	next := *w.p
	next.StartTime, next.Born = w.p.StartTime+1, w.now+1
	w.comms.follow(&next, w.field)
	w.call(reduce, w.at(1))
	w.check("the first", w.row(0))
	second := func() []recording.Communicator {
		return w.Communicators(func(id proc.ID) bool { return id == next.ID() })
	}
	if rows := second(); len(rows) > 0 {
		t.Errorf("calls of the first gave the second %+v", rows)
	}
	w.now++
	w.memory[0].rank = 5
	w.call(reduce, w.at(0))
	w.call(reduce, w.at(1))
	if diff := cmp.Diff([]recording.Communicator{w.row(0), w.row(1)}, second()); diff != "" {
		t.Errorf("the second: (-want +got)\n%s", diff)
	}
	both := w.Communicators(func(proc.ID) bool { return true })
	if diff := cmp.Diff([]recording.Communicator{w.row(1)}, both); diff != "" {
		t.Errorf("of both, whose addresses say different things: (-want +got)\n%s", diff)
	}
}
