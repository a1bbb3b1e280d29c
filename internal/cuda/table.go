package cuda

import (
	"fmt"
	"slices"
	"sync"
)

// Rows returns every row of the table, the driver's first, in the order in which
// documentation lists them. The slice is the caller's.
func Rows() []Row {
	driver := slices.Concat(
		driverSetup(), driverModules(), driverAllocs(), driverFrees(), driverMemory(),
		driverCopies(), driverOldCopies(), driverSets(), driverLaunches(), driverStreams(), driverGraphs())
	runtime := slices.Concat(
		runtimeSetup(), runtimeAllocs(), runtimeMemory(), runtimeCopies(), runtimeSets(),
		runtimeLaunches(), runtimeStreams(), runtimeGraphs())
	for i := range driver {
		driver[i].Library = Driver
	}
	for i := range runtime {
		runtime[i].Library = Runtime
	}
	nccl := ncclRows()
	for i := range nccl {
		nccl[i].Library = libraryNCCL
	}
	return slices.Concat(driver, runtime, nccl)
}

// index finds rows by name. It never changes once it is built.
type index struct {
	rows  []Row
	exact map[string]int // full names of Only (some with @MAJOR), and names of rows without Only
	globs []int          // rows with a trailing *, longest name first
}

// theIndex builds the index when it is first needed: building takes 0.1 ms, and a
// client that only asks for a version needs none.
var theIndex = sync.OnceValue(func() *index {
	ix := &index{rows: Rows(), exact: make(map[string]int)}
	for i := range ix.rows {
		r := &ix.rows[i]
		switch {
		case r.Glob():
			ix.globs = append(ix.globs, i)
		case r.Only == nil:
			ix.exact[exactKey(r.Name)] = i
		}
		for _, name := range r.Only {
			ix.exact[onlyKey(name)] = i
		}
	}
	slices.SortStableFunc(ix.globs, func(a, b int) int {
		return len(ix.rows[b].Name) - len(ix.rows[a].Name)
	})
	return ix
})

// A name that a row claims for itself alone and the same name as the base of its
// variants are different keys: cuMemcpyHtoD is the 32-bit function, and also the
// base of cuMemcpyHtoD_v2.
func exactKey(base string) string { return "/" + base }
func onlyKey(name string) string  { return "=" + name }

// String returns the word for a meaning that documentation uses.
func (m meaning) String() string {
	words := [...]string{
		"nothing", "bytes", "destination", "source", "stream", "copy kind", "handle", "pointer", "elements",
		"height", "count", "data type", "communicator",
	}
	if int(m) < len(words) {
		return words[m]
	}
	return fmt.Sprintf("meaning %d", m)
}
