package profile

import (
	"encoding/binary"
	"testing"

	"go.opentelemetry.io/ebpf-profiler/remotememory"

	"github.com/inferscope/inferscope/bpf"
)

// described is a struct _Py_DebugOffsets as 3.13 has it.
func described() []byte {
	b := make([]byte, 1024)
	copy(b, debugCookie)
	for at, v := range map[int]uint64{8: 0x030d00f0, 80: 7400, 176: 16, 216: 32, 576: 200} {
		binary.LittleEndian.PutUint64(b[at:], v)
	}
	return b
}

// layoutBy reports what is taken from a target's words about itself, which may be hostile.
func layoutBy(t *testing.T, change func(b []byte)) bpf.SamplePythonLayout {
	t.Helper()
	b := described()
	change(b)
	var l bpf.SamplePythonLayout
	addCollector(&l, python313, 8, remotememory.RemoteMemory{ReaderAt: shifted(b)})
	return l
}

// shifted is memory that begins at address 8.
type shifted []byte

func (s shifted) ReadAt(p []byte, off int64) (int, error) { return copy(p, s[off-8:]), nil }

func TestDescribedCollector(t *testing.T) {
	want := bpf.SamplePythonLayout{
		GcOffset:     7400,
		GcCollecting: 200,
		StateInterp:  16,
		StateStatus:  32,
		StatusActive: statusActive,
	}
	if got := layoutBy(t, func([]byte) {}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	for name, change := range map[string]func(b []byte){
		"another cookie":   func(b []byte) { b[0] = 'y' },
		"another version":  func(b []byte) { b[10] = 14 },
		"a collector afar": func(b []byte) { binary.LittleEndian.PutUint64(b[80:], 1<<40) },
		"a status afar":    func(b []byte) { binary.LittleEndian.PutUint64(b[216:], 256) },
		"a flag afar":      func(b []byte) { binary.LittleEndian.PutUint64(b[576:], 1<<17) },
	} {
		if got := layoutBy(t, change); got != (bpf.SamplePythonLayout{}) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	var l bpf.SamplePythonLayout
	if addCollector(&l, 0x306, 0, remotememory.RemoteMemory{}); l != (bpf.SamplePythonLayout{}) {
		t.Errorf("3.6: %+v", l)
	}
}

func TestCollectionOnTop(t *testing.T) {
	py := pyStack{calls: []call{{frame: frame{kind: pythonFrame, name: "run"}, entry: true}}, complete: true}
	for name, c := range map[string]struct {
		py               pyStack
		collects, inLoop bool
		want             int
	}{
		"it collects":            {py, true, false, 2},
		"it does not":            {py, false, false, 1},
		"it runs a finaliser":    {py, true, true, 1},
		"there is no Python yet": {pyStack{}, true, false, 0},
	} {
		got := withCollector(c.py, c.collects, c.inLoop)
		if len(got.calls) != c.want || got.complete != c.py.complete {
			t.Errorf("%s: %+v", name, got)
		}
		if c.want == 2 && (got.calls[0].name != collecting || got.calls[0].entry || got.calls[1] != py.calls[0]) {
			t.Errorf("%s: %+v", name, got.calls)
		}
	}
}
