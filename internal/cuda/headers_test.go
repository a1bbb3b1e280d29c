package cuda

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/nvlibs"
)

// header is one version of the public headers.
type header struct {
	part  nvlibs.Part
	major int
}

func headers() []header {
	return []header{{nvlibs.Runtime11, 11}, {nvlibs.Runtime12, 12}, {nvlibs.Runtime13, 13}}
}

// TestHeaders compares every row with the prototypes of three CUDA versions: each
// parameter that a row selects must be there and be of the right kind, and no
// stream, copy kind or size that a row could show may be left out.
func TestHeaders(t *testing.T) {
	for _, h := range headers() {
		t.Run(string(h.part), func(t *testing.T) {
			all := nvlibs.DriverPrototypes(t, h.part)
			maps.Copy(all, nvlibs.RuntimePrototypes(t, h.part))
			if len(all) < 800 {
				t.Fatalf("only %d prototypes found: the parser is off", len(all))
			}
			checked := 0
			for _, name := range slices.Sorted(maps.Keys(all)) {
				row, ok := match(name, h.major)
				if !ok || glob(name, h.major) {
					continue
				}
				checked++
				for _, problem := range compare(row, all[name]) {
					t.Errorf("%s(%s): row %s: %s", name, strings.Join(all[name], ", "), row.Name, problem)
				}
			}
			t.Logf("%d prototypes, %d of rows with arguments or groups of their own", len(all), checked)
		})
	}
}

// glob reports whether name is described by a row with a * only.
func glob(name string, major int) bool {
	i, _ := find(name, major)
	return i >= 0 && theIndex().rows[i].Glob()
}

// compare lists what is wrong with row for a function of these parameters.
func compare(row Row, params []string) []string {
	var problems []string
	slots := append(row.Slots[:], row.Aux)
	for _, s := range slots {
		if s.Param == 0 {
			continue
		}
		if int(s.Param) > len(params) {
			problems = append(problems, fmt.Sprintf("%s is parameter %d of %d", s.Meaning, s.Param, len(params)))
			continue
		}
		p := params[s.Param-1]
		if want := looks(s.Meaning, row); !want.MatchString(p) {
			problems = append(problems, fmt.Sprintf("parameter %d, %q, is no %s", s.Param, p, s.Meaning))
		}
		if wide := slices.IndexFunc(params[:s.Param], byValue); wide >= 0 {
			problems = append(
				problems,
				fmt.Sprintf("parameter %d follows %q, which takes more than one register", s.Param, params[wide]),
			)
		}
		if narrow := strings.HasPrefix(p, "unsigned int "); narrow != row.Narrow && s.Meaning >= meansBytes &&
			(s.Meaning == meansBytes || s.Meaning == meansElements || s.Meaning == meansHeight) {
			problems = append(problems, fmt.Sprintf("%q is narrow: %v, the row says %v", p, narrow, row.Narrow))
		}
	}
	return append(problems, missing(row, params)...)
}

// missing lists parameters that the row could show and does not.
func missing(row Row, params []string) []string {
	var problems []string
	if row.Shape != shapeParams || row.Hot {
		return missingDescriptor(row, params)
	}
	for i, p := range params {
		selected := slices.ContainsFunc(append(row.Slots[:], row.Aux), func(s slot) bool { return int(s.Param) == i+1 })
		if selected || slices.IndexFunc(params[:i], byValue) >= 0 || countsOther(row.Name, p) {
			continue
		}
		if isStream.MatchString(p) || isKind.MatchString(p) || sizeName.MatchString(p) && !strings.Contains(p, "*") {
			problems = append(problems, fmt.Sprintf("%q (parameter %d) is not selected", p, i+1))
		}
	}
	return problems
}

// countsOther reports whether a parameter that is named like a size counts something
// else: the entries of an array, or elements of a size that another parameter says.
func countsOther(name, param string) bool {
	entries := regexp.MustCompile(`Batch|MapArrayAsync|MemSetAccess`)
	return strings.HasSuffix(param, " count") && entries.MatchString(name) || name == "cudaMallocArray"
}

// missingDescriptor checks the shapes that read more than plain parameters.
func missingDescriptor(row Row, params []string) []string {
	want := map[shape]string{
		shapeLaunch: "CUfunction f|unsigned int gridDimX|unsigned int gridDimY|unsigned int gridDimZ|" +

			"unsigned int blockDimX|unsigned int blockDimY|unsigned int blockDimZ|unsigned int " +
			"sharedMemBytes|CUstream hStream|void **kernelParams",
		shapeLaunchEx:   "const CUlaunchConfig *config|CUfunction f|void **kernelParams|void **extra",
		shapeRTLaunch:   "const void *func|dim3 gridDim|dim3 blockDim|void **args|size_t sharedMem|cudaStream_t stream",
		shapeRTLaunchEx: "const cudaLaunchConfig_t *config|const void *func|void **args",
		shapeCopy2D:     "const CUDA_MEMCPY2D *pCopy",
		shapeCopy3D:     "const CUDA_MEMCPY3D *pCopy",
	}[row.Shape]
	if row.Shape == shapeCopy3D && row.Direction == Peer {
		want = "const CUDA_MEMCPY3D_PEER *pCopy"
	}
	if row.Slots[3].Meaning == meansStream {
		want += "|CUstream hStream"
	}
	if got := strings.Join(params, "|"); !strings.HasPrefix(got, want) ||
		row.Slots[3].Param == 0 && row.Group == Copy && got != want {
		return []string{fmt.Sprintf("parameters %q, want %q", got, want)}
	}
	return nil
}

var (
	isStream = regexp.MustCompile(`^(CUstream|cudaStream_t) ?\w+$`)
	isKind   = regexp.MustCompile(`^enum cudaMemcpyKind \w+$`)
	sizeName = regexp.MustCompile(`\b(ByteCount|bytesize|WidthInBytes|Height|height|N|Width|width|length|size|count)$`)
	// structures of more than eight bytes that the API passes by value
	wideType = regexp.MustCompile(
		`^(dim3|struct cudaExtent|struct cudaPitchedPtr|cudaIpc\w+Handle_t|CUipc\w+Handle|struct cudaMemcpy\w+) \w+$`,
	)
)

func byValue(param string) bool { return wideType.MatchString(param) }

// looks returns what a parameter of a meaning looks like in the headers.
func looks(m meaning, row Row) *regexp.Regexp {
	const (
		size   = `^(size_t|unsigned int) `
		anyPtr = `^(CUdeviceptr|void ?\*|const void ?\*) ?`
	)
	patterns := map[meaning]string{
		meansBytes:    size + `(ByteCount|bytesize|WidthInBytes|width|count|length|size|minBytesToKeep)$`,
		meansElements: size + `(N|Width)$`,
		meansHeight:   size + `(Height|height)$`,
		meansDst:      anyPtr + `(dst|dstDevice|dstHost|devPtr)$`,
		meansSrc:      anyPtr + `(src|srcDevice|srcHost)$`,
		meansStream:   isStream.String(),
		meansCopyKind: isKind.String(),
		meansPointer:  `^(CUdeviceptr|void ?\*|const void ?\*) ?(p|ptr|dptr|devPtr|addr)$|^(CUdeviceptr|void ?\*) ?(ptr|devPtr|dptr|hostPtr)$`,
		meansHandle:   `^(CU|cuda)[\w]+ \w+$|^const void \*func$`,
	}
	if row.Deref && (m == meansPointer || m == meansHandle || m == meansStream) {
		return derefLooks(m)
	}
	return regexp.MustCompile(patterns[m])
}

// derefLooks is for results, and for the other parameters of functions that have one.
func derefLooks(m meaning) *regexp.Regexp {
	switch m {
	case meansPointer:
		return regexp.MustCompile(`^(CUdeviceptr ?\*|void ?\*\*) ?\w+$`)
	case meansStream:
		return regexp.MustCompile(`^(CUstream|cudaStream_t) ?\*? ?\w+$`)
	}
	return regexp.MustCompile(`^(CU|cuda)\w+ ?\*? ?\w+$`)
}
