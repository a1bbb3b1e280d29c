package cudaapi

import (
	"encoding/binary"
	"encoding/hex"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/nvlibs"
)

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

// ncclComm is a communicator as a library might have it.
type ncclComm struct {
	magic, other, hash  uint64
	rank, ranks, device int32
}

// TestCommunicators: communicators are read when they are first used or made, and again when their address was.
func TestCommunicators(t *testing.T) {
	const reduce, create, destroy = 3, 5, 4
	pid := uint32(os.Getpid())
	s := &Source{procs: map[proc.ID]*process{{PID: pid}: {pid: pid, libraries: []*library{
		{}, {contents: contents{ranks: rankField{uint64(unsafe.Offsetof(ncclComm{}.rank)), 22809}}},
	}}}}
	for index, name := range map[uint16]string{
		reduce: "ncclAllReduce", create: "ncclCommInitRank", destroy: "ncclCommDestroy",
	} {
		row, ok := cuda.Match(name)
		if !ok {
			t.Fatal(name)
		}
		s.comms.probed(index, &row)
	}
	memory := [3]ncclComm{
		{ncclMagic, 0, 0xae94, 3, 8, 1}, {ncclMagic, 0, 0xae95, 0, 2, 0}, {1, 0, 0xae96, 0, 2, 0},
	}
	var pin runtime.Pinner
	pin.Pin(&memory)
	defer pin.Unpin()
	at := func(i int) uint64 { return uint64(uintptr(unsafe.Pointer(&memory[i]))) }
	now := uint64(1000)
	call := func(fn uint16, comm uint64) {
		e := event.Event{TS: now, Kind: event.Call, PID: pid, Func: fn, Flags: event.Timed | event.Deref}
		e.Args[0] = comm
		if fn == reduce {
			e.Args = [4]uint64{1000, comm}
		}
		s.Observe([]event.Event{
			{Kind: event.Call, Func: 900}, {Kind: event.Sample, Func: reduce, Args: [4]uint64{0, at(1)}}, e,
		})
	}
	row := func(i int) recording.Communicator {
		c := &memory[i]
		hash := binary.LittleEndian.AppendUint64(nil, c.hash)
		return recording.Communicator{
			PID: pid, Address: at(i), Hash: hex.EncodeToString([]byte{hash[1], hash[0]}), Rank: int(c.rank),
			Ranks: int(c.ranks), GPU: int(c.device),
		}
	}
	check := func(what string, want ...recording.Communicator) {
		t.Helper()
		if diff := cmp.Diff(want, s.Communicators()); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", what, diff)
		}
	}
	call(reduce, at(0))
	call(reduce, at(2))
	call(reduce, 0)
	call(reduce, 1<<40)
	check("one that is none, and no address", row(0))
	call(create, at(1))
	check("one that was made", row(0), row(1))
	memory[2].magic = ncclMagic
	call(reduce, at(2))
	check("one that was none at first, too soon after", row(0), row(1))
	now += firstWait << 1
	call(reduce, at(2))
	check("one that was none at first", row(0), row(1), row(2))
	before := row(0)
	memory[0].rank = 4
	call(reduce, at(0))
	check("known ones are not read again", before, row(1), row(2))
	call(destroy, at(1))
	call(reduce, at(1))
	check("an address that is used again by the same", before, row(1), row(2))
	call(create, at(0))
	now += 1000 * firstWait
	call(reduce, at(0))
	check("an address that is used by another one", row(1), row(2))
	call(create, at(0))
	check("and by the same once more", row(1), row(2))
}
