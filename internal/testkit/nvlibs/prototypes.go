package nvlibs

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// Prototypes maps the names of functions to their parameters, each as "type name".
type Prototypes map[string][]string

// DriverPrototypes reads cuda.h of a runtime part: every function under the names
// that libcuda exports, old versions and per-thread variants included.
func DriverPrototypes(tb testing.TB, part Part) Prototypes {
	tb.Helper()
	return readPrototypes(tb, part, "cuda.h", "-D__CUDA_API_VERSION_INTERNAL")
}

// RuntimePrototypes reads cuda_runtime_api.h of a runtime part, per-thread variants included.
func RuntimePrototypes(tb testing.TB, part Part) Prototypes {
	tb.Helper()
	all := readPrototypes(tb, part, "cuda_runtime_api.h")
	maps.Copy(all, readPrototypes(tb, part, "cuda_runtime_api.h", "-DCUDA_API_PER_THREAD_DEFAULT_STREAM"))
	return all
}

// hostDefines stands for a header that comes in another package and declares nothing.
const hostDefines = `
#define __host__
#define __device__
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __cudart_builtin__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __builtin_align__(n)
#define __align__(n)
#define __specialization_static
#define __forceinline__
`

// readPrototypes preprocesses a header and finds every function in it. It skips
// the test where there is no C preprocessor.
func readPrototypes(tb testing.TB, part Part, name string, defines ...string) Prototypes {
	tb.Helper()
	cc := needs.Tool(tb, "cc")
	path := Header(tb, part, name)
	stub := filepath.Join(tb.TempDir(), "crt")
	must.NoError(tb, os.MkdirAll(stub, 0o755))
	must.NoError(tb, os.WriteFile(filepath.Join(stub, "host_defines.h"), []byte(hostDefines), 0o644))
	args := append([]string{"-E", "-P", "-x", "c", "-I", filepath.Dir(stub), "-I", filepath.Dir(path)}, defines...)
	text, err := output(exec.Command(cc, append(args, path)...))
	if err != nil {
		tb.Fatalf("preprocess %s of %s: %v", name, part, err)
	}
	return parsePrototypes(string(text))
}

func parsePrototypes(text string) Prototypes {
	attribute := regexp.MustCompile(`__attribute__ ?\(\([^;]*?\)\)`)
	prototype := regexp.MustCompile(`(?:CUresult|cudaError_t) ?(cu\w+) ?\(([^;{}]*?)\) ?;`)
	flat := attribute.ReplaceAllString(strings.Join(strings.Fields(text), " "), "")
	found := make(Prototypes)
	for _, m := range prototype.FindAllStringSubmatch(flat, -1) {
		found[m[1]] = splitParams(m[2])
	}
	return found
}

func splitParams(list string) []string {
	if strings.TrimSpace(list) == "void" {
		return nil
	}
	params := strings.Split(list, ",")
	for i := range params {
		params[i] = strings.TrimSpace(params[i])
	}
	return params
}
