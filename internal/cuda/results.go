package cuda

import (
	"fmt"
	"sync"
)

// results are the names of result codes by library. They never change once built.
var results = sync.OnceValue(func() map[Library]map[int32]string {
	return map[Library]map[int32]string{Driver: driverResults(), Runtime: runtimeResults()}
})

// ResultName returns the name of a result code as the library's header has it,
// e.g. CUDA_ERROR_OUT_OF_MEMORY or cudaErrorMemoryAllocation. A code that no
// known header has (a newer CUDA's) is shown as its type and number.
func ResultName(lib Library, code int32) string {
	if name, ok := results()[lib][code]; ok {
		return name
	}
	switch lib {
	case Driver:
		return fmt.Sprintf("CUresult %d", code)
	case Runtime:
		return fmt.Sprintf("cudaError_t %d", code)
	case HIP:
		return fmt.Sprintf("hipError_t %d", code)
	}
	return fmt.Sprintf("error %d", code)
}
