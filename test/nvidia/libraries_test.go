// Package nvidia tests against NVIDIA's real libraries, which are fetched for the
// purpose and skipped with a reason where they cannot be had, and AMD's HIP runtime where it is installed. No GPU is
// needed.
package nvidia

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/capture/uprobe/elffile"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/nvlibs"
)

// library is a parsed library.
type library struct {
	path     string
	file     *elffile.File
	identity cuda.Identity
	exports  []cuda.Export
	code     map[uint64]elffile.Function // by address
}

func open(t testing.TB, part nvlibs.Part) library {
	t.Helper()
	return openFile(t, nvlibs.Library(t, part))
}

func openFile(t testing.TB, path string) library {
	t.Helper()
	f, err := os.Open(path)
	must.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	info, err := f.Stat()
	must.NoError(t, err)
	l := library{path: path, code: make(map[uint64]elffile.Function)}
	if l.file, err = elffile.Open(f, info.Size()); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	functions, err := l.file.Functions()
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	for _, fn := range functions {
		l.exports = append(l.exports, cuda.Export{Name: fn.Name, Addr: fn.Addr})
		l.code[fn.Addr] = fn
	}
	var ok bool
	if l.identity, ok = cuda.Identify(l.file.SONAME, l.exports); !ok {
		t.Fatalf("%s (SONAME %q) is not recognised", path, l.file.SONAME)
	}
	return l
}

// plan is what would be probed with all options on, and each address's probe point.
func (l *library) plan(t testing.TB, o cuda.Options) (cuda.Selection, map[uint64]uprobe.Point) {
	t.Helper()
	s, err := cuda.Plan(l.identity, l.exports, o)
	must.NoError(t, err)
	points := make(map[uint64]uprobe.Point)
	for _, p := range s.Points {
		points[p.Addr] = uprobe.Choose(l.code[p.Addr].Code, p.Addr, l.file.Machine)
	}
	return s, points
}

// TestProbePoints prints what the table finds in each library, and demands that
// nearly every function can be probed at an instruction that the kernel emulates.
func TestProbePoints(t *testing.T) {
	t.Logf("%-12s %8s %8s %9s %8s %8s %8s %8s",
		"library", "exports", "in table", "addresses", "cheap", "default", "hot", "shadowed")
	for _, part := range append(nvlibs.Drivers(), nvlibs.Runtimes()...) {
		t.Run(string(part), func(t *testing.T) {
			l := open(t, part)
			all, points := l.plan(t, cuda.Options{Hot: true, Shadowed: true})
			usual, _ := l.plan(t, cuda.Options{})
			cheap := 0
			var dear []string
			for _, p := range all.Points {
				if points[p.Addr].Cheap {
					cheap++
				} else {
					dear = append(dear, p.Name+" at "+points[p.Addr].Insn)
				}
			}
			t.Logf("%-12s %8d %8d %9d %8d %8d %8d %8d",
				part, len(l.exports), all.Found, len(all.Points), cheap, len(usual.Points), usual.Hot,
				usual.Shadowed)
			t.Logf("dear points: %s", strings.Join(dear, ", "))
			if cheap*100 < len(all.Points)*99 {
				t.Errorf("only %d of %d points are cheap", cheap, len(all.Points))
			}
			if part != nvlibs.Driver470 && all.Found < 300 {
				t.Errorf("only %d functions of the table found", all.Found)
			}
		})
	}
}

// TestIdentities: what the libraries are must not be read from their paths.
func TestIdentities(t *testing.T) {
	for part, want := range map[nvlibs.Part]cuda.Identity{
		nvlibs.Driver470: {Kind: cuda.Driver},
		nvlibs.Driver550: {Kind: cuda.Driver},
		nvlibs.Runtime11: {Kind: cuda.Runtime, Major: 11},
		nvlibs.Runtime12: {Kind: cuda.Runtime, Major: 12},
		nvlibs.Runtime13: {Kind: cuda.Runtime, Major: 13},
	} {
		t.Run(string(part), func(t *testing.T) {
			l := open(t, part)
			if l.identity != want {
				t.Errorf("%+v, want %+v", l.identity, want)
			}
			if nameless, ok := cuda.Identify("", l.exports); !ok || nameless.Kind != want.Kind ||
				nameless.Major != 0 && nameless.Major != want.Major {
				t.Errorf("without its SONAME: %+v, %v", nameless, ok)
			}
		})
	}
}

// TestNothingMissing: each function that the headers declare and the table describes
// in a row of its own is exported by the library and planned. For the drivers the
// headers are those of CUDA 11.8, which all but the oldest are newer than.
func TestNothingMissing(t *testing.T) {
	type pair struct {
		library    nvlibs.Part
		prototypes func(testing.TB, nvlibs.Part) nvlibs.Prototypes
		headers    nvlibs.Part
	}
	for _, c := range []pair{
		{nvlibs.Driver535, nvlibs.DriverPrototypes, nvlibs.Runtime11},
		{nvlibs.Driver550, nvlibs.DriverPrototypes, nvlibs.Runtime11},
		{nvlibs.Driver555, nvlibs.DriverPrototypes, nvlibs.Runtime11},
		{nvlibs.Runtime11, nvlibs.RuntimePrototypes, nvlibs.Runtime11},
		{nvlibs.Runtime12, nvlibs.RuntimePrototypes, nvlibs.Runtime12},
		{nvlibs.Runtime13, nvlibs.RuntimePrototypes, nvlibs.Runtime13},
	} {
		t.Run(string(c.library), func(t *testing.T) {
			declared := c.prototypes(t, c.headers)
			l := open(t, c.library)
			all, _ := l.plan(t, cuda.Options{Hot: true, Shadowed: true})
			planned := make(map[string]bool)
			for _, p := range all.Points {
				for _, name := range p.Names {
					planned[name] = true
				}
			}
			checked := 0
			for name := range declared {
				if !ownRow(name) {
					continue
				}
				checked++
				if !planned[name] {
					t.Errorf("%s is declared and in the table, but not exported or not planned", name)
				}
			}
			t.Logf("%d of %d declared functions have rows of their own; all must be there", checked, len(declared))
			if checked < 100 {
				t.Errorf("only %d functions checked", checked)
			}
		})
	}
}

// ownRow reports whether the table has a row for name and not only for its family.
func ownRow(name string) bool {
	row, ok := cuda.Match(name)
	return ok && slices.ContainsFunc(cuda.Rows(), func(r cuda.Row) bool { return r.Name == row.Name })
}
