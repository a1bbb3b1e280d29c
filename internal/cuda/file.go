package cuda

import "strings"

// IsDriverFile reports whether a file of this name is the CUDA driver's library: libcuda.so, libcuda.so.1,
// libcuda.so.580.159. Nobody renames it, and the agent looks for the same name (agent/src/library.c): a libcuda-xyz.so
// is somebody else's.
func IsDriverFile(base string) bool {
	return base == "libcuda.so" || strings.HasPrefix(base, "libcuda.so.")
}
