package profile

import (
	"encoding/binary"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"go.opentelemetry.io/ebpf-profiler/support"

	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

func needBPF(t *testing.T) *ebpf.CollectionSpec {
	t.Helper()
	needs.Root(t, "it loads BPF programs")
	spec, err := support.LoadCollectionSpec()
	must.NoError(t, err)
	return spec
}

// The registers of a thread lie at the end of its kernel stack, which has 8 to 64 kB.
func TestSavedRegisters(t *testing.T) {
	spec := needBPF(t)
	k := readOffsets()
	if k.err != nil || !k.vmas || k.stack == 0 {
		t.Fatalf("%+v", k)
	}
	at, err := savedRegisters(spec, k.stack)
	must.NoError(t, err)
	const registers = 168 // bytes of struct pt_regs on x86-64; arm64 has more
	if end := at + registers; at%8 != 0 || end < 8<<10-1024 || end > 64<<10 {
		t.Errorf("they are at %d", at)
	}
	if _, err := askKernel(spec, "read_kernel_memory", 8); err == nil {
		t.Error("there is no kernel memory at address 8")
	}
	if _, err := askKernel(spec, "no_such_program", 0); err == nil {
		t.Error("there is no such program")
	}
}

// The programs also load as they are made for a kernel that cannot find mappings (before 5.17).
func TestWithoutVMAs(t *testing.T) {
	spec := needBPF(t)
	must.NoError(t, adapt(spec, DefaultHz, kernelVersion(6, 18, 0), &kernelOffsets{stack: 32, registers: 16216}))
	for name, p := range spec.Programs {
		for i := range p.Instructions {
			if in := &p.Instructions[i]; in.IsBuiltinCall() && in.Constant == 180 { // bpf_find_vma
				t.Fatalf("%s calls bpf_find_vma", name)
			}
		}
	}
	var o unwindObjects
	must.NoError(t, spec.LoadAndAssign(&o, nil))
	o.close()
}

func TestKernelsThatFreeze(t *testing.T) {
	for _, tt := range []struct {
		major, minor, patch uint32
		want                bool
	}{
		{5, 15, 200, false},
		{5, 18, 19, false},
		{5, 19, 0, true},
		{6, 0, 19, true},
		{6, 1, 35, true},
		{6, 1, 36, false},
		{6, 1, 300, false},
		{6, 2, 0, true},
		{6, 2, 16, true},
		{6, 3, 9, true},
		{6, 3, 10, false},
		{6, 4, 0, false},
		{6, 18, 44, false},
	} {
		if got := readsFreeze(kernelVersion(tt.major, tt.minor, tt.patch)); got != tt.want {
			t.Errorf("%d.%d.%d: %v, want %v", tt.major, tt.minor, tt.patch, got, tt.want)
		}
	}
}

// Members are found in structures without a name too, where the kernel has put some.
func TestMemberOffset(t *testing.T) {
	inner := &btf.Union{
		Members: []btf.Member{{Name: "x", Type: &btf.Int{}}, {Name: "vm_flags", Type: &btf.Int{}, Offset: 64}},
	}
	members := []btf.Member{
		{Name: "other", Type: &btf.Struct{Members: []btf.Member{{Name: "vm_flags", Type: &btf.Int{}}}}},
		{Type: &btf.Const{Type: inner}, Offset: 256},
	}
	if at, ok := memberOffset(members, "vm_flags"); at != 40 || !ok {
		t.Errorf("%d, %v, want 40", at, ok)
	}
	if _, ok := memberOffset(members, "nothing"); ok {
		t.Error("found what is not there")
	}
}

func TestTraceRing(t *testing.T) {
	for _, tt := range []struct {
		hz, cpus int
		want     uint32
	}{{99, 1, 64 << 10}, {99, 2, 128 << 10}, {99, 16, 1 << 20}, {499, 16, 4 << 20}} {
		if got := traceRing(tt.hz, tt.cpus); got != tt.want {
			t.Errorf("%d Hz, %d CPUs: %d bytes, want %d", tt.hz, tt.cpus, got, tt.want)
		}
	}
}

func TestReadTrace(t *testing.T) {
	record := make([]byte, int(traceFrames)+8*3)
	ne := binary.NativeEndian
	ne.PutUint32(record[tracePID:], 7)
	ne.PutUint32(record[traceTID:], 8)
	ne.PutUint64(record[traceTime:], 9)
	ne.PutUint16(record[traceLength:], 3)
	ne.PutUint16(record[traceKernel:], 1)
	ne.PutUint64(record[traceFrames+8:], 10)
	ne.PutUint64(record[traceFrames+16:], 11)
	got, frames, ok := readTrace(record)
	if !ok || got.pid != 7 || got.tid != 8 || got.at != 9 || len(frames) != 2 || frames[0] != 10 || frames[1] != 11 {
		t.Errorf("%+v, %v, %v", got, frames, ok)
	}
	if _, _, ok := readTrace(record[:len(record)-1]); ok {
		t.Error("a record that is too short was read")
	}
	if _, _, ok := readTrace(record[:traceFrames-1]); ok {
		t.Error("a record without frames was read")
	}
	ne.PutUint16(record[traceKernel:], 4)
	if _, _, ok := readTrace(record); ok {
		t.Error("there are more kernel frames than frames")
	}
}
