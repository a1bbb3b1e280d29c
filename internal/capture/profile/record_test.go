package profile

import (
	"encoding/binary"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// The record is read by hand; it must be as the compiler laid it out.
func TestRecordIsTheStruct(t *testing.T) {
	want := bpf.SampleSample{
		Ts:           1 << 40,
		Ip:           1 << 50,
		Pid:          1 << 20,
		Tid:          1 << 21,
		Cpu:          77,
		Cause:        1,
		Python:       2,
		PythonFrames: 1,
		KernelFrames: 1,
	}
	frame := bpf.SamplePythonFrame{Code: 1<<45 | 1<<63, Check: 1 << 30, Lasti: 1 << 29}
	if unsafe.Sizeof(want) != headerBytes || unsafe.Sizeof(frame) != frameBytes {
		t.Fatalf("sizes are %d and %d", unsafe.Sizeof(want), unsafe.Sizeof(frame))
	}
	b, err := binary.Append(nil, binary.NativeEndian, want)
	if err == nil {
		b, err = binary.Append(b, binary.NativeEndian, frame)
	}
	must.NoError(t, err)
	const kernel = 0xffffffff81000000
	b = binary.NativeEndian.AppendUint64(b, kernel)
	var got raw
	must.NoError(t, got.decode(b))
	expected := raw{
		header: header{
			ts:    want.Ts,
			ip:    want.Ip,
			pid:   want.Pid,
			tid:   want.Tid,
			cpu:   want.Cpu,
			cause: event.Switch,
			walk:  2,
		},
		stack:  b[headerBytes:],
		python: []codeAt{{1 << 45, frame.Check, frame.Lasti}}, entry: []bool{true}, kernel: []uint64{kernel},
	}
	if diff := cmp.Diff(expected, got, cmp.AllowUnexported(raw{}, header{}, codeAt{})); diff != "" {
		t.Error(diff)
	}
	if err := new(raw).decode(b[:len(b)-1]); err == nil {
		t.Error("a record that is cut short is taken")
	}
}

// The bounds of the program and of the reader must be the same.
func TestRecordBounds(t *testing.T) {
	var s bpf.SampleSampleScratch
	if len(s.Python) != maxPython {
		t.Errorf("the program walks %d frames, the reader takes %d", len(s.Python), maxPython)
	}
	if room := unsafe.Offsetof(s.Frame) - unsafe.Offsetof(s.Python); room != maxPython*frameBytes+(maxKernel+maxReturns)*8 {
		t.Errorf("the program has room for %d bytes of frames", room)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(make([]byte, headerBytes))
	f.Add(append(make([]byte, 28), 1, 1, 2, 3))
	fuzzing.Run(f, func(t *testing.T, b []byte) {
		var r raw
		if err := r.decode(b); err == nil && len(b) < headerBytes+len(r.python)*frameBytes+len(r.kernel)*8 {
			t.Errorf("%d bytes give %d Python and %d kernel frames", len(b), len(r.python), len(r.kernel))
		}
	})
}

func TestRingBytes(t *testing.T) {
	for _, c := range []struct {
		hz, cpus int
		want     uint32
	}{{1, 1, minRing}, {99, 2, minRing}, {999, 8, 2 << 20}, {2000, 256, maxRing}} {
		if got := ringBytes(c.hz, c.cpus); got != c.want {
			t.Errorf("ringBytes(%d, %d) = %d, not %d", c.hz, c.cpus, got, c.want)
		}
	}
}
