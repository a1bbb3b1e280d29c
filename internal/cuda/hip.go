package cuda

import "strings"

// hipNames are the functions of AMD's HIP runtime whose names do not follow from CUDA's, with the CUDA function that
// does the same (hip_runtime_api.h and hip_ext.h of ROCm 6.4; the table of HIPIFY). The others are hipX for cudaX.
var hipNames = map[string]string{
	"hipLaunchByPtr":                     "cudaLaunchKernel",
	"hipExtLaunchKernel":                 "cudaLaunchKernel",
	"hipExtLaunchMultiKernelMultiDevice": "cudaLaunchCooperativeKernelMultiDevice",
	"hipModuleLaunchKernel":              "cuLaunchKernel",
	"hipModuleLaunchCooperativeKernel":   "cuLaunchCooperativeKernel",
	"hipExtModuleLaunchKernel":           "cuLaunchKernel",
	"hipHccModuleLaunchKernel":           "cuLaunchKernel",
	"hipDrvLaunchKernelEx":               "cuLaunchKernelEx",
	"hipMemcpyWithStream":                "cudaMemcpy",
	"hipMemcpyHtoD":                      "cuMemcpyHtoD",
	"hipMemcpyDtoH":                      "cuMemcpyDtoH",
	"hipMemcpyDtoD":                      "cuMemcpyDtoD",
	"hipMemcpyHtoDAsync":                 "cuMemcpyHtoDAsync",
	"hipMemcpyDtoHAsync":                 "cuMemcpyDtoHAsync",
	"hipMemcpyDtoDAsync":                 "cuMemcpyDtoDAsync",
	"hipMemcpyParam2D":                   "cuMemcpy2D",
	"hipMemcpyParam2DAsync":              "cuMemcpy2DAsync",
	"hipHostMalloc":                      "cudaHostAlloc",
	"hipHostFree":                        "cudaFreeHost",
	"hipExtMallocWithFlags":              "cudaMalloc",
	"hipMallocPitch":                     "cudaMallocPitch",
	"hipExtStreamCreateWithCUMask":       "cudaStreamCreateWithFlags",
	"hipCtxSynchronize":                  "cuCtxSynchronize",
	"hipModuleLoad":                      "cuModuleLoad",
	"hipModuleLoadData":                  "cuModuleLoadData",
	"hipModuleLoadDataEx":                "cuModuleLoadDataEx",
	"hipModuleUnload":                    "cuModuleUnload",
	"hipModuleGetFunction":               "cuModuleGetFunction",
	"hipInit":                            "cuInit",
	"hipCtxCreate":                       "cuCtxCreate",
	"hipCtxDestroy":                      "cuCtxDestroy",
	"hipMemsetD8":                        "cuMemsetD8",
	"hipMemsetD8Async":                   "cuMemsetD8Async",
	"hipMemsetD16":                       "cuMemsetD16",
	"hipMemsetD16Async":                  "cuMemsetD16Async",
	"hipMemsetD32":                       "cuMemsetD32",
	"hipMemsetD32Async":                  "cuMemsetD32Async",
	"hipStreamWaitValue32":               "cuStreamWaitValue32",
	"hipStreamWriteValue32":              "cuStreamWriteValue32",
}

// HIP is AMD's HIP runtime, libamdhip64. Its functions have rows as Runtime: they are what programs call.
const HIP Library = "hip"

// likeHIP returns the name of the CUDA function that does the same as a function of HIP; "" where it is none of HIP's.
func likeHIP(name string) string {
	base := strings.TrimSuffix(name, "_spt") // the variants of the per-thread default stream
	if !strings.HasPrefix(base, "hip") || !identifier(base) {
		return ""
	}
	if like, ok := hipNames[base]; ok {
		return like
	}
	return "cuda" + base[len("hip"):]
}

// MatchHIP returns the row of the CUDA function that does the same as a function of AMD's HIP runtime, with HIP's name:
// its group and whether it can block hold for both, its arguments are not looked at.
func MatchHIP(name string) (Row, bool) {
	row, ok := hipRow(name)
	row.Hot = false // which is about probes
	return row, ok
}

// hipRow is MatchHIP that tells what is asked often and says nothing. Nothing is shadowed: there is no driver's call
// inside of HIP's.
func hipRow(name string) (Row, bool) {
	row, ok := Match(likeHIP(name))
	if !ok {
		return Row{}, false
	}
	return Row{
		Name: strings.TrimSuffix(name, "_spt"), Library: Runtime, Group: row.Group, Timed: row.Timed,
		Direction: row.Direction, Hot: row.Hot,
	}, true
}
