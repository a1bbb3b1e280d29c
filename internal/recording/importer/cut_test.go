package importer_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/importer"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// endless is a trace of so many bytes, made while it is read: each step is an operator, a launch and a kernel.
type endless struct {
	left int
	step int
	text []byte
}

func (r *endless) Read(p []byte) (int, error) {
	if len(r.text) == 0 {
		switch {
		case r.step == 0:
			r.text = []byte(`{"traceEvents":[`)
		case r.left <= 0:
			return 0, io.EOF
		default:
			r.text = steps(r.step)
			if r.left -= len(r.text); r.left <= 0 {
				r.text = append(r.text[:len(r.text)-1], "]}"...)
			}
		}
		r.step++
	}
	n := copy(p, r.text)
	r.text = r.text[n:]
	return n, nil
}

func steps(n int) []byte {
	at := n * 100
	return fmt.Appendf(
		nil,
		`{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":9,"tid":9,"ts":%d,"dur":50,"args":{"External id":%d,"Input Dims":[[4096,4096],[4096,4096]]}},`+
			`{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,"ts":%d,"dur":5,"args":{"correlation":%d}},`+
			`{"ph":"s","id":%d,"pid":9,"tid":9,"ts":%d,"cat":"ac2g","name":"ac2g"},`+
			`{"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":%d,"dur":60,"args":{"device":0,"stream":7,"correlation":%d,"grid":[32,64,1],"block":[128,1,1]}},`,
		at,
		n,
		at+10,
		n,
		n,
		at+10,
		at+20,
		n,
	)
}

// TestTooLargeIsCut holds that of a trace that does not fit its beginning is read, whole, and that this is said.
func TestTooLargeIsCut(t *testing.T) {
	rec, err := importer.ReadKineto(&endless{left: 20_000_000},
		importer.Limits{Bytes: 1 << 30, Events: 20_000, Names: 1 << 20})
	must.NoError(t, err)
	kinds := map[event.Kind]int{}
	last := uint64(0)
	for i := range rec.Events {
		kinds[rec.Events[i].Kind]++
		if rec.Events[i].Kind == event.Kernel {
			last = rec.Events[i].TS
		}
	}
	steps := int(rec.Meta.To-rec.Meta.From) / 100_000
	if kinds[event.Kernel] < 2000 || kinds[event.Call]-kinds[event.Kernel] > 1 || kinds[event.Kernel]-steps > 1 ||
		steps-kinds[event.Kernel] > 1 {
		t.Errorf("%d steps lie in the window, %d calls and %d kernels are there",
			steps, kinds[event.Call], kinds[event.Kernel])
	}
	if last > rec.Meta.To {
		t.Errorf("a kernel begins at %d, the window ends at %d", last, rec.Meta.To)
	}
	said := ""
	for _, s := range rec.Meta.Sources {
		if s.Name == "import" {
			said = s.Detail
		}
	}
	if !strings.Contains(said, "its first") || !strings.Contains(said, "--max-memory") {
		t.Errorf("what is missing is not said: %q", said)
	}
}

// TestMemoryIsBounded reads a trace of 100 MB with room for 50,000 events in a process of its own.
func TestMemoryIsBounded(t *testing.T) {
	const variable = "INFERSCOPE_TEST_IMPORT"
	if os.Getenv(variable) != "" {
		rec, err := importer.ReadKineto(&endless{left: 100_000_000},
			importer.Limits{Bytes: 1 << 30, Events: 50_000, Names: 1 << 20})
		must.NoError(t, err)
		fmt.Println("events", len(rec.Events), "peak", peak(t))
		return
	}
	if runtime.GOOS != "linux" {
		t.Skip("the peak of a process's memory is read from /proc")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=TestMemoryIsBounded")
	cmd.Env = append(os.Environ(), variable+"=1")
	out, err := cmd.Output()
	must.NoError(t, err)
	var events, kb int
	if _, err := fmt.Sscanf(string(out), "events %d peak %d", &events, &kb); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if events < 10_000 || kb > 120_000 {
		t.Errorf("%d events, %d kB at most: 100 MB were read with room for 50,000 events", events, kb)
	}
}

// peak is the most memory that this process has had, kB.
func peak(t testing.TB) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	must.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	n := 0
	if _, err := fmt.Sscan(rest, &n); err != nil {
		t.Fatal(err)
	}
	return n
}
