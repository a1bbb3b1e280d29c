package symbol_test

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/symbol"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

func open(path string) (symbol.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// module is the file at a path of this machine.
func module(path string) symbol.Module {
	return symbol.Module{Path: path, Open: func() (symbol.File, error) { return open(path) }, Beside: open}
}

// rooted is the file at a path inside a root.
func rooted(root, path string) symbol.Module {
	beside := func(p string) (symbol.File, error) { return open(filepath.Join(root, p)) }
	return symbol.Module{Path: path, Open: func() (symbol.File, error) { return beside(path) }, Beside: beside}
}

// run runs a tool; the test is skipped where there is none.
func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("needs %s: %v", name, err)
	}
	must.Run(t, exec.Command(name, args...))
}

// compile makes a shared library out of a source of testdata.
func compile(t testing.TB, source string, flags ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "libx.so")
	cc := "cc"
	if strings.HasSuffix(source, ".cc") {
		cc = "c++"
	}
	run(
		t,
		cc,
		append(
			[]string{"-O1", "-shared", "-fPIC", "-Wl,--build-id=sha1", "-o", out, filepath.Join("testdata", source)},
			flags...)...)
	return out
}

// truth is what debug/elf, which reads everything, says of a file: the functions by
// address.
func truth(t testing.TB, path string) map[uint64]map[string]elf.Symbol {
	t.Helper()
	f, err := elf.Open(path)
	must.NoError(t, err)
	defer f.Close()
	syms, err := f.Symbols()
	if err != nil {
		if syms, err = f.DynamicSymbols(); err != nil {
			t.Fatal(err)
		}
	}
	out := map[uint64]map[string]elf.Symbol{}
	for _, s := range syms {
		kind := elf.ST_TYPE(s.Info)
		if s.Section == elf.SHN_UNDEF || s.Section >= elf.SHN_LORESERVE || int(s.Section) >= len(f.Sections) ||
			f.Sections[s.Section].Flags&elf.SHF_EXECINSTR == 0 ||
			kind != elf.STT_FUNC && kind != elf.STT_GNU_IFUNC && kind != elf.STT_NOTYPE {
			continue
		}
		if out[s.Value] == nil {
			out[s.Value] = map[string]elf.Symbol{}
		}
		out[s.Value][s.Name] = s
	}
	return out
}

// address returns where a function begins.
func address(t testing.TB, path, name string) uint64 {
	t.Helper()
	for addr, names := range truth(t, path) {
		if _, ok := names[name]; ok {
			return addr
		}
	}
	t.Fatalf("%s has no %s", path, name)
	return 0
}

// size returns how long a function is.
func size(t testing.TB, path, name string) uint64 {
	t.Helper()
	return truth(t, path)[address(t, path, name)][name].Size
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	must.NoError(t, err)
	write(t, to, b)
}

func write(t testing.TB, to string, b []byte) {
	t.Helper()
	must.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
	must.NoError(t, os.WriteFile(to, b, 0o644))
}
