package cuda

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/inferscope/inferscope/internal/recording"
)

// Export is one function that a library exports.
type Export struct {
	Name string // without its symbol version
	Addr uint64 // whatever tells code locations of one file apart: a virtual address or a file offset
}

// Identity describes which CUDA library a file is.
type Identity struct {
	Kind  Library
	Major int // of libcudart: 11, 12, 13; 0 where it is not known, and for the driver
}

// Identify tells a CUDA library by its SONAME and what it exports, never by its
// path: wheels and containers rename and copy files, and auditwheel puts a hash
// into the name (libcudart-d0da41ae.so.11.0). A library without a SONAME is told
// by its exports. A library of another name that exports CUDA functions (an
// interposer) is not one: it calls the real one, which is probed.
func Identify(soname string, exports []Export) (Identity, bool) {
	has := exported(exports)
	if has["hipMalloc"] && has["hipLaunchKernel"] && namedLike(soname, "libamdhip64") {
		return Identity{Kind: HIP}, true
	}
	driver := has["cuInit"] && has["cuLaunchKernel"]
	runtime := has["cudaMalloc"] && has["cudaLaunchKernel"]
	switch {
	case has["ncclAllReduce"] && has["ncclGroupEnd"] && (namedLike(soname, "libnccl") || namedLike(soname, "librccl")):
		return Identity{Kind: libraryNCCL}, true
	case driver && namedLike(soname, "libcuda"):
		return Identity{Kind: Driver}, true
	case runtime && namedLike(soname, "libcudart"):
		return Identity{Kind: Runtime, Major: runtimeMajor(soname, has)}, true
	case soname != "" || driver == runtime:
		return Identity{}, false
	case driver:
		return Identity{Kind: Driver}, true
	}
	return Identity{Kind: Runtime, Major: runtimeMajor("", has)}, true
}

// exported notes which of the few names that identify a library it exports.
func exported(exports []Export) map[string]bool {
	has := map[string]bool{
		"cuInit": false, "cuLaunchKernel": false, "cudaMalloc": false, "cudaLaunchKernel": false,
		"ncclAllReduce": false, "ncclGroupEnd": false, "cudaMemPrefetchBatchAsync": false,
		"cudaMemPrefetchAsync_v2": false, "hipMalloc": false, "hipLaunchKernel": false,
	}
	for _, e := range exports {
		if _, asked := has[e.Name]; asked {
			has[e.Name] = true
		}
	}
	return has
}

// namedLike reports whether soname is lib.so..., or lib with a wheel's hash before .so.
func namedLike(soname, lib string) bool {
	rest, ok := strings.CutPrefix(soname, lib)
	return ok && strings.Contains(rest, ".so") && (rest[0] == '.' || rest[0] == '-')
}

// runtimeMajor reads libcudart's major version from its SONAME, or from functions
// that came and went with it (CUDA 12.2 and 13.0).
func runtimeMajor(soname string, has map[string]bool) int {
	if _, version, ok := strings.Cut(soname, ".so."); ok {
		digits, _, _ := strings.Cut(version, ".")
		if v, err := strconv.ParseUint(digits, 10, 8); err == nil && v > 0 {
			return int(v)
		}
	}
	switch {
	case has["cudaMemPrefetchBatchAsync"]:
		return 13
	case has["cudaMemPrefetchAsync_v2"]:
		return 12
	}
	return 0
}

// maxPoints bounds how many functions of one library are probed. The driver of
// CUDA 13 has about 700 that the table knows; more come from a hostile file only.
const maxPoints = 2048

// Options describes which functions to leave out.
type Options struct {
	Hot      bool // probe also what is asked very often and says nothing (--all-calls)
	Shadowed bool // probe also runtime functions whose driver call says as much: where no driver library is probed
	Core     bool // probe what moves data, starts work or waits only: where each probe is dear to remove
}

// Point is one address to probe.
type Point struct {
	Row   Row
	Name  string   // the name that stands for the address: see Plan
	Names []string // all names of the table at this address, sorted
	Addr  uint64   // as given in Export
	rank  int      // the row's place in the table
}

// Function describes the point in a recording's function table.
func (p *Point) Function() recording.Function {
	return recording.Function{
		Name:    p.Name,
		Base:    p.Row.Name,
		Library: string(p.Row.Library),
		Group:   string(p.Row.Group),
		Timed:   p.Row.Timed,
	}
}

// Selection is what to probe in one library.
type Selection struct {
	Points   []Point // one for each distinct address, in the table's order
	Found    int     // exported functions that the table knows, probed or not
	Hot      int     // of these, left out because Options.Hot is off
	Shadowed int     // of these, left out because Options.Shadowed is off
	Minor    int     // of these, left out because Options.Core is on
}

// Plan decides what to probe in a library. Where several names share one address,
// the name of the newest version stands for it, the plain one before the
// per-thread variant: what a program compiled against current headers calls.
// An error means that the file exports more than any CUDA library does.
func Plan(id Identity, exports []Export, o Options) (Selection, error) {
	var s Selection
	byAddr := make(map[uint64]*candidate)
	for _, e := range exports {
		row, ok := known(e.Name, id)
		if !ok {
			continue
		}
		s.Found++
		if byAddr[e.Addr] == nil {
			byAddr[e.Addr] = &candidate{addr: e.Addr, row: row, name: e.Name}
		}
		byAddr[e.Addr].add(row, e.Name)
	}
	for _, c := range byAddr {
		s.take(c, id, o)
	}
	if len(s.Points) > maxPoints {
		return Selection{}, fmt.Errorf(
			"library exports %d functions named like CUDA's, more than the %d that any version has: it is not probed",
			len(s.Points),
			maxPoints,
		)
	}
	slices.SortFunc(s.Points, func(a, b Point) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.Name, b.Name))
	})
	return s, nil
}

// known returns the row of a function in a library; false where the table has none.
func known(name string, id Identity) (row int, ok bool) {
	if id.Kind == HIP {
		row, _ = find(likeHIP(name), 0)
		return row, row >= 0
	}
	row, _ = find(name, id.Major)
	return row, row >= 0 && theIndex().rows[row].Library == id.Kind
}

// take adds c's point unless it is to be left out.
func (s *Selection) take(c *candidate, id Identity, o Options) {
	row := theIndex().rows[c.row]
	if id.Kind == HIP {
		row, _ = hipRow(c.name)
	} else {
		row, _ = match(c.name, id.Major)
	}
	switch {
	case row.Hot && !o.Hot:
		s.Hot += len(c.names)
	case row.Shadowed && !o.Shadowed:
		s.Shadowed += len(c.names)
	case o.Core && !row.core():
		s.Minor += len(c.names)
	default:
		slices.Sort(c.names)
		s.Points = append(s.Points,
			Point{Row: row, Name: c.name, Names: slices.Compact(c.names), Addr: c.addr, rank: c.row})
	}
}

// candidate collects the names of one address.
type candidate struct {
	addr  uint64
	row   int
	name  string
	names []string
}

func (c *candidate) add(row int, name string) {
	c.names = append(c.names, name)
	if better(name, c.name) {
		c.row, c.name = row, name
	}
}

// better reports whether name a stands for an address rather than b does.
func better(a, b string) bool {
	_, va := splitVersion(trimThread(a))
	_, vb := splitVersion(trimThread(b))
	return cmp.Or(cmp.Compare(vb, va), cmp.Compare(len(a), len(b)), strings.Compare(a, b)) < 0
}

// core reports whether a function moves data, starts work, or waits for it.
func (r *Row) core() bool {
	switch r.Group {
	case Launch, Copy, Set, Alloc, Free, Sync, groupCollective:
		return !r.Narrow
	case Graph:
		return r.Timed && strings.HasSuffix(r.Name, "Launch")
	}
	return false
}
