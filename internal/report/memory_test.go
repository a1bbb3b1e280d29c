package report

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/memory"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/report/document"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestMemoryOfTheDriver: the JSON form says what the driver's own calls allocated, also where no framework is known.
func TestMemoryOfTheDriver(t *testing.T) {
	m := New(decode().Recording())
	if len(m.Summary.Memory.Kinds) == 0 || m.Memory != nil {
		t.Fatalf("the recording has no calls that allocate, or a framework's: %+v", m.Summary.Memory)
	}
	var out bytes.Buffer
	must.NoError(t, MemoryJSON(&out, m))
	var got struct {
		Memory *memory.Summary
		Driver struct {
			Kinds []struct {
				Count uint64
				Kept  uint64 `json:"kept_bytes"`
			}
		}
	}
	must.NoError(t, json.Unmarshal(out.Bytes(), &got))
	want := m.Summary.Memory.Kinds[0]
	if got.Memory != nil || len(got.Driver.Kinds) != len(m.Summary.Memory.Kinds) ||
		got.Driver.Kinds[0].Count != want.Count || got.Driver.Kinds[0].Kept != want.Kept {
		t.Errorf("%s", out.Bytes())
	}
}

// TestHeldByDriver: what a process holds is said where no framework's allocator is known to compare it with.
func TestHeldByDriver(t *testing.T) {
	rec := decode().Recording()
	rec.Meta.Sensors = []recording.Sensor{{TS: rec.Meta.From, GPU: 3, UUID: "GPU-3"}}
	rec.Meta.Driver = &recording.Driver{Processes: []recording.GPUProcess{
		{PID: 18, UUID: "GPU-3", Used: 7e9}, {PID: 17, UUID: "GPU-3", Used: 5e9}, {PID: 17, UUID: "GPU-4", Used: 9e9},
	}}
	m := New(rec)
	m.Memory = &memory.Summary{Devices: []memory.Device{{PID: 18, Type: "cuda", Process: 7e9}, {PID: 18, Type: "cpu"}}}
	for name, d := range map[string]func(w io.Writer) error{
		"memory": func(w io.Writer) error { return document.Text(w, MemoryDocument(m), document.Style{}) },
		"report": func(w io.Writer) error { return Text(w, m, TextOptions{}) },
	} {
		var text bytes.Buffer
		must.NoError(t, d(&text))
		if got := text.String(); !strings.Contains(got, "Process 17 holds 5.00 GB of GPU 3 by the driver's count.") ||
			strings.Contains(got, "Process 18 holds") || strings.Contains(got, "9.00 GB of GPU") {
			t.Errorf("%s:\n%s", name, got)
		}
	}
}

// TestFragmentation: an allocation that failed although the segments had room for it is said to be one.
func TestFragmentation(t *testing.T) {
	const mib = 1 << 20
	m := New(decode().Recording())
	for _, c := range []struct {
		asked uint64
		want  bool
	}{{100 * mib, true}, {101 * mib, false}} {
		m.Memory = &memory.Summary{Devices: []memory.Device{{
			Type: "cuda", Reserved: 400 * mib,
			Exhausted: []memory.Exhausted{{Name: "hog", Asked: c.asked, Allocated: 300 * mib, Reserved: 400 * mib}},
		}}}
		var text bytes.Buffer
		must.NoError(t, document.Text(&text, MemoryDocument(m), document.Style{}))
		got := strings.Join(strings.Fields(text.String()), " ")
		if !strings.Contains(got, "hog asked for") ||
			strings.Contains(got, "The segments had 105 MB free, but in no piece") != c.want {
			t.Errorf("asked for %d:\n%s", c.asked, text.String())
		}
	}
}

// TestNothingOfAllocators: that nothing was recorded is said where nothing else is, with how to record it, and the
// table of calls not beside exact totals of the same.
func TestNothingOfAllocators(t *testing.T) {
	const nothing, table = "Nothing was recorded of allocators. Record while", "Memory of the driver's own calls"
	calls := New(decode().Recording())
	none := New(decode().Recording())
	none.Summary.Memory.Kinds = nil
	exact := New(decode().Recording())
	exact.Memory = &memory.Summary{Devices: []memory.Device{{Type: "pinned", Allocations: 1}}}
	for _, c := range []struct {
		m              *Model
		nothing, table bool
	}{{calls, false, true}, {none, true, false}, {exact, false, false}} {
		var text bytes.Buffer
		must.NoError(t, document.Text(&text, MemoryDocument(c.m), document.Style{}))
		if got := text.String(); strings.Contains(got, nothing) != c.nothing || strings.Contains(got, table) != c.table {
			t.Errorf("%+v:\n%s", c.m.Memory, got)
		}
	}
	var text bytes.Buffer
	must.NoError(t, Text(&text, exact, TextOptions{}))
	if !strings.Contains(text.String(), "Pinned host memory of the CUDA driver's calls, process 0") {
		t.Errorf("pinned memory is shown as GPU memory:\n%s", text.String())
	}
}

// TestMemoryOfOthers: memory of others is not said to be the process's, arrays to be larger than known, and where
// several GPUs are used, what is not explained of each is said.
func TestMemoryOfOthers(t *testing.T) {
	m := New(decode().Recording())
	m.Memory = &memory.Summary{
		Devices: []memory.Device{
			{Type: "array", Index: 1, Allocated: 3e6, Allocations: 1},
			{Type: "shared", Index: -1, Allocated: 2e6, Allocations: 3},
		},
		GPUs: []memory.GPU{
			{PID: 7, Process: 5e9, Segments: 3e9, Unexplained: 2e9}, {PID: 7, Index: -1, Mapped: 2e6},
		},
	}
	must.NoError(t, json.Unmarshal([]byte(`[
		{"name": "open_peer", "live_blocks": 2},
		{"name": "import_image", "live_bytes": 2000000, "live_blocks": 5}
	]`), &m.Memory.Devices[1].Sites))
	var whole, short bytes.Buffer
	if err := document.Text(&whole, MemoryDocument(m), document.Style{}); err != nil {
		t.Fatal(err)
	}
	if err := Text(&short, m, TextOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{whole.String(), short.String()} {
		got := strings.Join(strings.Fields(text), " ")
		for _, want := range []string{
			"Arrays of the CUDA driver's calls on GPU 1, process 0",
			"3.00 MB of what was allocated since the attach, by the arrays' dimensions: the driver pads them",
			"Memory mapped from other processes and APIs, process 0",
			"2.00 MB mapped since the attach: not this process's own memory; 2 blocks of CUDA IPC of unknown size",
			"0 7 5.00 GB 3.00 GB - - 2.00 GB -", "not known 7 - - - - - 2.00 MB",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("%q is not said:\n%s", want, text)
			}
		}
	}
}
