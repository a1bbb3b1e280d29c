package symbol_test

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/symbol"
	"github.com/inferscope/inferscope/internal/format/symname"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

func TestResolve(t *testing.T) {
	lib := compile(t, "lib.c")
	stripped := filepath.Join(t.TempDir(), "libx.so")
	run(t, "strip", "-o", stripped, lib)
	tests := []struct {
		path, at, want string
	}{
		{lib, "exported_one", "exported_one"},
		{lib, "hidden_helper", "hidden_helper"},
		{lib, "exported_two", "nice_name"}, // of three names: no underscores, then the shortest
		{lib, "no_size", "no_size"},
		{lib, "no_size_next", "no_size_next"},
		{stripped, "exported_one", "exported_one"},
		{stripped, "hidden_helper", ""},
		{stripped, "no_size", ""}, // nothing says how far it reaches
	}
	table := symbol.New(symbol.Options{})
	for _, tt := range tests {
		addr := address(t, lib, tt.at)
		for _, off := range []uint64{0, 1} {
			want := symbol.Symbol{Name: tt.want, Offset: off, Module: "libx.so"}
			text := tt.want
			if tt.want == "" {
				want.Offset = addr + off
				text = fmt.Sprintf("libx.so+%#x", addr+off)
			}
			if got := table.Resolve(module(tt.path), addr+off); got != want || got.String() != text {
				t.Errorf("%s+%d in %s is %+v %q, want %+v %q", tt.at, off, tt.path, got, got, want, text)
			}
		}
	}
	// The last byte of a function, and the first behind it: padding is nobody's.
	end := address(t, lib, "exported_one") + size(t, lib, "exported_one")
	if got := table.Resolve(module(lib), end-1); got.Name != "exported_one" {
		t.Errorf("the last byte is %+v", got)
	}
	if got := table.Resolve(module(lib), end); got.Name == "exported_one" {
		t.Errorf("the byte behind the end is %+v", got)
	}
	for _, addr := range []uint64{0, 1, 1 << 40, 1<<64 - 1} {
		if got := table.Resolve(module(lib), addr); got.Name != "" {
			t.Errorf("%#x is %+v", addr, got)
		}
	}
}

// The procedure linkage table lies behind _init in .init, or before .text; it has no
// symbols, and must not be taken for a neighbour's.
func TestSectionsEnd(t *testing.T) {
	lib := compile(t, "lib.c")
	f, err := elf.Open(lib)
	must.NoError(t, err)
	defer f.Close()
	table := symbol.New(symbol.Options{})
	for _, name := range []string{".plt", ".plt.got", ".plt.sec"} {
		if s := f.Section(name); s != nil {
			if got := table.Resolve(module(lib), s.Addr+s.Size-1); got.Name != "" {
				t.Errorf("%s is %+v", name, got)
			}
		}
	}
}

// What a real library says, symbol by symbol: each function's first and last byte is
// its own, or that of one that begins later and lies over it.
func TestAgainstDebugELF(t *testing.T) {
	found, _ := filepath.Glob("/lib*/*/lib[cm].so.6")
	more, _ := filepath.Glob("/usr/lib/*/libstdc++.so.6")
	found = append(append(found, more...), compile(t, "lib.c"), compile(t, "lib.cc"))
	checked := 0
	for _, path := range found {
		table := symbol.New(symbol.Options{Full: true})
		m := module(path)
		m.Beside = nil // a debug file that is installed knows better names
		all := truth(t, path)
		for addr, names := range all {
			want := map[string]bool{}
			var any elf.Symbol
			for name, s := range names {
				want[symname.Demangle(name, true)] = true
				any = s
			}
			if any.Size == 0 {
				continue
			}
			checked++
			if got := table.Resolve(m, addr); !want[got.Name] || got.Offset != 0 {
				t.Errorf("%s: %#x is %+v, want one of %v", path, addr, got, want)
			}
		}
		if s := table.Stats(); s.Failures > 0 || s.Builds != 1 {
			t.Errorf("%s: %+v", path, s)
		}
	}
	if checked < 100 {
		t.Errorf("only %d functions checked", checked)
	}
}

func TestTemplates(t *testing.T) {
	lib := compile(t, "lib.cc")
	for addr, names := range truth(t, lib) {
		for name := range names {
			if !strings.Contains(name, "elementwise") {
				continue
			}
			short := symbol.New(symbol.Options{}).Resolve(module(lib), addr).Name
			full := symbol.New(symbol.Options{Full: true}).Resolve(module(lib), addr).Name
			if short != "at::native::elementwise<4, ...>" ||
				!strings.Contains(full, "Pair<int, Pair<long, Pair<char*, int> > >") {
				t.Errorf("%s is %q, whole %q", name, short, full)
			}
			return
		}
	}
	t.Error("the library has no such template")
}

// A file without section headers still has what the dynamic loader needs.
func TestNoSections(t *testing.T) {
	lib := compile(t, "lib.c")
	addr := address(t, lib, "exported_one")
	b, err := os.ReadFile(lib)
	must.NoError(t, err)
	clear(b[40:48]) // e_shoff
	clear(b[58:64]) // e_shentsize, e_shnum, e_shstrndx
	path := filepath.Join(t.TempDir(), "libx.so")
	write(t, path, b)
	if got := symbol.New(symbol.Options{}).Resolve(module(path), addr+1); got.Name != "exported_one" ||
		got.Offset != 1 {
		t.Errorf("%+v", got)
	}
}

func TestSegments(t *testing.T) {
	lib := compile(t, "lib.c")
	addr := address(t, lib, "exported_one")
	f, err := open(lib)
	must.NoError(t, err)
	defer f.Close()
	segments, err := symbol.ReadSegments(f)
	must.NoError(t, err)
	for _, s := range segments {
		if s.Executable && addr >= s.Addr && addr < s.Addr+s.Size {
			if got, ok := segments.Address(addr - s.Addr + s.Offset); !ok || got != addr {
				t.Errorf("%#x, %v; want %#x", got, ok, addr)
			}
		}
	}
	if got, ok := segments.Address(1 << 40); ok {
		t.Errorf("beyond the file is %#x", got)
	}
}

// Two copies of a file with a build id are read once; a stripped one, whose build id
// is the same, is another file.
func TestShared(t *testing.T) {
	lib := compile(t, "lib.c")
	dir := t.TempDir()
	a, stripped := filepath.Join(dir, "a.so"), filepath.Join(dir, "stripped.so")
	copyFile(t, lib, a)
	run(t, "strip", "-o", stripped, lib)
	addr := address(t, lib, "hidden_helper")
	table := symbol.New(symbol.Options{})
	for _, m := range []symbol.Module{module(lib), module(a)} {
		if got := table.Resolve(m, addr); got.Name != "hidden_helper" {
			t.Errorf("%s: %+v", m.Path, got)
		}
	}
	if s := table.Stats(); s.Builds != 1 || s.Indexes != 1 || s.Hits != 1 || s.Misses != 1 {
		t.Errorf("two copies: %+v", s)
	}
	if got := table.Resolve(module(stripped), addr); got.Name != "" {
		t.Errorf("stripped: %+v", got)
	}
	if s := table.Stats(); s.Builds != 2 {
		t.Errorf("a stripped copy: %+v", s)
	}
}

// A file that was replaced under a Key is not asked.
func TestReplaced(t *testing.T) {
	lib := compile(t, "lib.c")
	m := module(lib)
	f, err := open(lib)
	must.NoError(t, err)
	m.Key, err = symbol.Identify(f)
	f.Close()
	must.NoError(t, err)
	one, two := address(t, lib, "exported_one"), address(t, lib, "exported_two")
	table := symbol.New(symbol.Options{})
	if got := table.Resolve(m, one); got.Name != "exported_one" {
		t.Fatalf("%+v", got)
	}
	must.NoError(t, os.Rename(compile(t, "lib.cc"), lib))
	if got := table.Resolve(m, one); got.Name != "exported_one" {
		t.Errorf("a name that was known: %+v", got)
	}
	if got := table.Resolve(m, two); got.Name != "" {
		t.Errorf("a name that was not read before: %+v", got)
	}
	if err := table.Check(module(lib)); err != nil {
		t.Errorf("the new file: %v", err)
	}
}

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "text"), []byte("no ELF file, but as long as the header of one, which has 64 bytes"))
	table := symbol.New(symbol.Options{})
	if err := table.Check(module(filepath.Join(dir, "text"))); err == nil ||
		!strings.Contains(err.Error(), "not an ELF file") {
		t.Errorf("text: %v", err)
	}
	if err := table.Check(module(filepath.Join(dir, "absent"))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
	if err := table.Check(symbol.Module{Path: "/x"}); err == nil {
		t.Error("a module without Open")
	}
	if got := table.Resolve(module(filepath.Join(dir, "absent")), 5); got.String() != "absent+0x5" {
		t.Errorf("%v", got)
	}
	// What made no sense is kept, what could not be opened is not.
	if s := table.Stats(); s.Indexes != 1 {
		t.Errorf("%+v", s)
	}
}

// The budget is kept, whatever is asked: the files that were least recently asked for
// go, and come back when they are asked for again.
func TestBudget(t *testing.T) {
	const n, files = 4000, 40 // 48 KB an index, 1.9 MB in all
	const budget = 512 << 10
	dir := t.TempDir()
	var modules []symbol.Module
	for i := range files {
		path := filepath.Join(dir, fmt.Sprintf("lib%d.so", i))
		write(t, path, library(n, byte(i)))
		modules = append(modules, module(path))
	}
	table := symbol.New(symbol.Options{Budget: budget})
	before := heap()
	for round := range 3 {
		for i, m := range modules {
			for f := 0; f < n; f += 40 {
				want := fmt.Sprintf("function_%d_%d", i, f)
				if got := table.Resolve(m, 0x1000+uint64(f)*16+3); got.Name != want || got.Offset != 3 {
					t.Fatalf("round %d: %+v, want %s", round, got, want)
				}
			}
			table.Resolve(modules[0], 0x1000) // always in use, so never dropped
			if s := table.Stats(); s.Bytes > budget {
				t.Fatalf("%+v", s)
			}
		}
	}
	s := table.Stats()
	if s.Evictions < files || s.Builds >= 3*files || s.Indexes < 5 {
		t.Errorf("%+v", s)
	}
	if grown := heap() - before; grown > 2*budget {
		t.Errorf("the heap grew by %d bytes for a budget of %d; %+v", grown, budget, s)
	}
	runtime.KeepAlive(table)
}

// Names give way before the index does, and a file beyond the budget has none.
func TestBudgetOfOne(t *testing.T) {
	const n = 4000
	path := filepath.Join(t.TempDir(), "lib.so")
	write(t, path, library(n, 1))
	table := symbol.New(symbol.Options{Budget: 80 << 10})
	for f := range n {
		table.Resolve(module(path), 0x1000+uint64(f)*16)
	}
	if s := table.Stats(); s.Builds != 1 || s.Bytes > 80<<10 || s.Misses != n {
		t.Errorf("%+v", s)
	}
	small := symbol.New(symbol.Options{Budget: 40 << 10})
	if err := small.Check(module(path)); err == nil || !strings.Contains(err.Error(), "budget") {
		t.Errorf("%v", err)
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Many at once get one index, and right answers while others are dropped.
func TestConcurrent(t *testing.T) {
	dir := t.TempDir()
	var modules []symbol.Module
	for i := range 8 {
		path := filepath.Join(dir, fmt.Sprintf("lib%d.so", i))
		write(t, path, library(500, byte(i)))
		modules = append(modules, module(path))
	}
	table := symbol.New(symbol.Options{Budget: 40 << 10}) // 5 of 8 fit
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 400 {
				m, f := (i*7+g)%8, (i*13+g)%500
				if got, want := table.Resolve(
					modules[m], 0x1000+uint64(f)*16,
				).Name, fmt.Sprintf("function_%d_%d", m, f); got != want {
					t.Errorf("%q, want %q", got, want)
				}
			}
		})
	}
	wg.Wait()
	if s := table.Stats(); s.Bytes > 40<<10 || s.Failures > 0 {
		t.Errorf("%+v", s)
	}
}
