package cuda

import (
	"strconv"
	"strings"
)

// maxName bounds the names that are looked at, in bytes: the longest of CUDA 13
// has 54.
const maxName = 96

// Match returns the row that describes the exported function name, as of a
// library whose version is not known. A row found by a glob carries the
// function's own name, without suffixes, in Name.
func Match(name string) (Row, bool) { return match(name, 0) }

// match is Match in a libcudart of the given major version; 0 where there is none.
func match(name string, major int) (Row, bool) {
	i, base := find(name, major)
	if i < 0 {
		return Row{}, false
	}
	row := theIndex().rows[i]
	if row.Glob() {
		row.Name = base
	}
	return row, true
}

// find returns the index of the row for name, or -1, and the name without suffixes.
func find(name string, major int) (row int, base string) {
	if !strings.HasPrefix(name, "cu") && !strings.HasPrefix(name, "nccl") || !identifier(name) {
		return -1, ""
	}
	ix := theIndex()
	unthreaded := trimThread(name)
	base = trimVersion(unthreaded)
	if i, ok := ix.claimed(unthreaded, major); ok {
		return i, base
	}
	if i, ok := ix.exact[exactKey(base)]; ok {
		return i, base
	}
	for _, i := range ix.globs {
		if g := ix.rows[i].Name; strings.HasPrefix(base, g[:len(g)-1]) {
			return i, base
		}
	}
	return -1, ""
}

// identifier reports whether name could be the name of a CUDA function: names reach
// terminals and metrics, and a hostile library can export anything.
func identifier(name string) bool {
	for _, c := range []byte(name) {
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return len(name) <= maxName
}

// claimed looks for a row that claims name for itself, newest library version first.
func (ix *index) claimed(name string, major int) (int, bool) {
	for v := min(major, maxMajor); v >= minMajor; v-- {
		if i, ok := ix.exact[onlyKey(name+"@"+strconv.Itoa(v))]; ok {
			return i, true
		}
	}
	i, ok := ix.exact[onlyKey(name)]
	return i, ok
}

// The versions of libcudart whose signatures were compared with the table. A newer
// one is read like the newest of these.
const (
	minMajor = 11
	maxMajor = 13
)

// trimThread removes the suffix of the per-thread-default-stream variants.
func trimThread(name string) string {
	if perThread(name) {
		return name[:len(name)-len("_ptsz")]
	}
	return name
}

// perThread reports whether the variant's default stream is the calling thread's own.
func perThread(name string) bool {
	return strings.HasSuffix(name, "_ptsz") || strings.HasSuffix(name, "_ptds")
}

// trimVersion removes a version suffix: _v and one or two digits.
func trimVersion(name string) string {
	base, _ := splitVersion(name)
	return base
}

// splitVersion returns name without its version suffix, and the version; 1 where it has none.
func splitVersion(name string) (string, int) {
	i := strings.LastIndex(name, "_v")
	if i <= 0 || len(name)-i > len("_v99") {
		return name, 1
	}
	v, err := strconv.ParseUint(name[i+2:], 10, 8)
	if err != nil || v == 0 {
		return name, 1
	}
	return name[:i], int(v)
}

// IsDriverFile reports whether a file of this name is the CUDA driver's library: libcuda.so, libcuda.so.1,
// libcuda.so.580.159. Nobody renames it, and the agent looks for the same name (agent/src/library.c): a libcuda-xyz.so
// is somebody else's.
func IsDriverFile(base string) bool {
	return base == "libcuda.so" || strings.HasPrefix(base, "libcuda.so.")
}
