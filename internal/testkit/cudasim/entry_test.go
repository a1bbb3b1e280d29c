package cudasim

import (
	"bytes"
	"debug/elf"
	"runtime"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// entries are the first bytes of each exported function of a library.
func entries(t *testing.T, path, prefix string) map[string][]byte {
	t.Helper()
	f, err := elf.Open(path)
	must.NoError(t, err)
	defer f.Close()
	syms, err := f.DynamicSymbols()
	must.NoError(t, err)
	out := map[string][]byte{}
	for _, s := range syms {
		if elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Section == elf.SHN_UNDEF || !strings.HasPrefix(s.Name, prefix) {
			continue
		}
		sec := f.Sections[s.Section]
		b := make([]byte, 30)
		if n, err := sec.ReadAt(b, int64(s.Value-sec.Addr)); err != nil && n < 4 {
			t.Fatalf("%s: %v", s.Name, err)
		}
		out[s.Name] = b
	}
	return out
}

func soname(t *testing.T, path string) string {
	t.Helper()
	f, err := elf.Open(path)
	must.NoError(t, err)
	defer f.Close()
	names, err := f.DynString(elf.DT_SONAME)
	if err != nil || len(names) != 1 {
		t.Fatalf("%s: soname %v %v", path, names, err)
	}
	return names[0]
}

func TestEntryShapes(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the entry shapes are those of x86-64")
	}
	p := Build(t)
	thunks := entries(t, p.Libcuda(Shape535), "cu")
	for name, b := range thunks {
		ok := bytes.Equal(b[:2], []byte{0x81, 0x3d}) && bytes.Equal(b[6:10], []byte{0x00, 0xba, 0x1c, 0x32}) &&
			bytes.Equal(b[10:14], []byte{0x74, 0x0c, 0xff, 0x25}) && b[24] == 0xb8
		if name != "cudasim_hooks" && !ok {
			t.Errorf("535 %s begins % x", name, b)
		}
	}
	pushes := entries(t, p.Libcuda(Shape580), "cu")
	for name, b := range pushes {
		if !bytes.Equal(b[:4], []byte{0x55, 0x48, 0x89, 0xe5}) {
			t.Errorf("580 %s begins % x", name, b)
		}
	}
	if len(thunks) < 590 || len(pushes) < 670 {
		t.Errorf("%d and %d exports, want 590 and 670 or more", len(thunks), len(pushes))
	}
	runtimeEntries := entries(t, p.Libcudart(), "")
	for name, b := range runtimeEntries {
		if b[0] != 0x55 {
			t.Errorf("libcudart %s begins % x", name, b)
		}
	}
	if len(runtimeEntries) < 420 {
		t.Errorf("%d runtime exports", len(runtimeEntries))
	}
}

func TestLibraryNames(t *testing.T) {
	p := Build(t)
	for path, want := range map[string]string{
		p.Libcuda(Shape535): "libcuda.so.1", p.Libcuda(Shape580): "libcuda.so.1",
		p.Libcudart(): "libcudart.so.13", p.Libcupti(): "libcupti.so.13",
	} {
		if got := soname(t, path); got != want {
			t.Errorf("%s: soname %s, want %s", path, got, want)
		}
	}
}
