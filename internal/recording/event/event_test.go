package event_test

import (
	"maps"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf/btf"

	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// specs returns the BTF of the committed objects of the CUDA probes, by file name.
// They name every type of bpf/event.h, so that clang keeps it.
func specs(t *testing.T) map[string]*btf.Spec {
	t.Helper()
	paths, err := filepath.Glob("../../../bpf/calls_*.o")
	must.NoError(t, err)
	if len(paths) != 2 {
		t.Fatalf("found %q instead of one object for amd64 and one for arm64: run make generate", paths)
	}
	all := map[string]*btf.Spec{}
	for _, path := range paths {
		spec, err := btf.LoadSpec(path)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all[filepath.Base(path)] = spec
	}
	return all
}

// cField is the name of a field of struct event for a field of Event.
func cField(goName string) string { return strings.ToLower(goName) }

func TestLayoutEqualsBTF(t *testing.T) {
	if size := unsafe.Sizeof(event.Event{}); size != event.Size {
		t.Fatalf("Event has %d bytes, Size says %d", size, event.Size)
	}
	for name, spec := range specs(t) {
		t.Run(name, func(t *testing.T) {
			var c *btf.Struct
			if err := spec.TypeByName("event", &c); err != nil {
				t.Fatalf("struct event: %v", err)
			}
			compare(t, reflect.TypeFor[event.Event](), c)
		})
	}
}

func compare(t *testing.T, g reflect.Type, c *btf.Struct) {
	t.Helper()
	if uintptr(c.Size) != g.Size() {
		t.Errorf("struct event has %d bytes, Event %d", c.Size, g.Size())
	}
	if len(c.Members) != g.NumField() {
		t.Errorf("struct event has %d fields, Event %d", len(c.Members), g.NumField())
	}
	for i := range min(g.NumField(), len(c.Members)) {
		f, m := g.Field(i), c.Members[i]
		if m.Name != cField(f.Name) {
			t.Errorf("field %d is %s in C and %s in Go", i, m.Name, f.Name)
		}
		if uintptr(m.Offset.Bytes()) != f.Offset {
			t.Errorf("%s lies at %d in C and at %d in Go", m.Name, m.Offset.Bytes(), f.Offset)
		}
		size, err := btf.Sizeof(m.Type)
		if err != nil || uintptr(size) != f.Type.Size() {
			t.Errorf("%s has %d bytes in C (%v) and %d in Go", m.Name, size, err, f.Type.Size())
		}
		if signed(m.Type) != (f.Type.Kind() == reflect.Int32) {
			t.Errorf("%s differs in sign between C and Go", m.Name)
		}
	}
}

// signed reports whether typ is a signed integer; of arrays, the size must do.
func signed(typ btf.Type) bool {
	i, ok := btf.UnderlyingType(typ).(*btf.Int)
	return ok && i.Encoding == btf.Signed
}

func TestConstantsEqualBTF(t *testing.T) {
	want := map[string]map[string]uint64{
		"event_kind": {
			"EVENT_NONE": uint64(event.None), "EVENT_CALL": uint64(event.Call), "EVENT_FORK": uint64(event.Fork),
			"EVENT_EXEC": uint64(event.Exec), "EVENT_EXIT": uint64(event.Exit), "EVENT_SAMPLE": uint64(event.Sample),
			"EVENT_OFFCPU": uint64(event.OffCPU),
			"EVENT_KERNEL": uint64(event.Kernel),
			"EVENT_COPY":   uint64(event.Copy),
			"EVENT_SET":    uint64(event.Set), "EVENT_SYNC": uint64(event.Sync),
			"EVENT_OVERHEAD": uint64(event.Overhead), "EVENT_RANGE": uint64(event.Range),
			"EVENT_SKIPPED": uint64(event.Skipped), "EVENT_MEMORY": uint64(event.Memory),
			"EVENT_MEMORY_FLOW": uint64(event.MemoryFlow), "EVENT_ALLOCATION": uint64(event.Allocation),
			"EVENT_OUT_OF_MEMORY": uint64(event.OutOfMemory),
		},
		"event_flags": {
			"EVENT_TIMED": uint64(event.Timed), "EVENT_FAULT": uint64(event.Fault), "EVENT_DEREF": uint64(event.Deref),
			"EVENT_CORRELATED": uint64(event.Correlated),
			"EVENT_NCCL":       uint64(event.NCCL),
		},
	}
	for file, spec := range specs(t) {
		for name, values := range want {
			var enum *btf.Enum
			if err := spec.TypeByName(name, &enum); err != nil {
				t.Fatalf("%s: enum %s: %v", file, name, err)
			}
			got := map[string]uint64{}
			for _, v := range enum.Values {
				got[v.Name] = v.Value
			}
			if !maps.Equal(got, values) {
				t.Errorf("%s: enum %s is %v in C and %v in Go", file, name, got, values)
			}
		}
	}
}

func TestEnd(t *testing.T) {
	e := event.Event{TS: 10, Dur: 5}
	if e.End() != 15 {
		t.Errorf("End() = %d, want 15", e.End())
	}
}
