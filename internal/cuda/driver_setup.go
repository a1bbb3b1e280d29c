package cuda

// What frameworks ask all the time was counted on an H200 with driver 580 and torch
// 2.11 (TestFrequency of test/nvidia). Eager GPT-2 decode makes 25,000 launches a
// second, and for each of them 10.6 cuCtxGetDevice_v2, 10.2 cudaGetDevice, 2.9
// cuDevicePrimaryCtxGetState, 0.8 cudaGetLastError, 0.4 cuCtxGetCurrent and 0.3
// cuKernelGetAttribute; each cuBLASLt product asks for the driver's version and a
// limit. Triton's launcher adds 2.6 cuPointerGetAttribute a launch. At 0.6 us a
// probe these would take a third of the launching thread and say nothing, so they
// are marked hot and left out unless asked for.

// driverSetup is what a program does before its first kernel: initialise, find
// devices, make contexts, load code.
func driverSetup() []Row {
	return []Row{
		timed(groupInit, "cuInit"),
		entry(groupInit, "cuDriverGetVersion").hot(),

		entry(Device, "cuDeviceGetAttribute").hot(), // a cached constant, asked per launch by some libraries
		entry(Device, "cuDeviceGet*"),
		entry(Device, "cuDevice*"),

		// Making a primary context takes 100 ms and more.
		timed(groupContext, "cuDevicePrimaryCtxRetain", handleAt(1)).made(),
		timed(groupContext, "cuDevicePrimaryCtxRelease"),
		timed(groupContext, "cuDevicePrimaryCtxReset"),
		timed(groupContext, "cuCtxCreate", handleAt(1)).made(),
		timed(groupContext, "cuCtxDestroy", handleAt(1)),
		timed(groupContext, "cuGreenCtxCreate", handleAt(1)).made(),
		timed(groupContext, "cuGreenCtxDestroy", handleAt(1)),
		// The current context is asked for by c10's device guards, and changed around
		// every operation by programs that keep contexts by hand (XLA, TensorRT, Numba).
		entry(groupContext, "cuDevicePrimaryCtxGetState").hot(),
		entry(groupContext, "cuCtxGetCurrent").hot(),
		entry(groupContext, "cuCtxSetCurrent").hot(),
		entry(groupContext, "cuCtxPushCurrent").hot(),
		entry(groupContext, "cuCtxPopCurrent").hot(),
		entry(groupContext, "cuCtxGetDevice").hot(),
		entry(groupContext, "cuCtxGetId").hot(),
		entry(groupContext, "cuCtxGetLimit").hot(),
		entry(groupContext, "cuDevicePrimaryCtx*"),
		entry(groupContext, "cuCtx*"),
		entry(groupContext, "cuGreenCtx*"),
	}
}

// driverModules load code. With CUDA_MODULE_LOADING=LAZY, the default since CUDA
// 11.7, looking a kernel up is what loads it.
func driverModules() []Row {
	return []Row{
		timed(Module, "cuModuleLoad", handleAt(1)).made(),
		timed(Module, "cuModuleLoadData", handleAt(1)).made(),
		timed(Module, "cuModuleLoadDataEx", handleAt(1)).made(),
		timed(Module, "cuModuleLoadFatBinary", handleAt(1)).made(),
		timed(Module, "cuModuleUnload", handleAt(1)),
		timed(Module, "cuModuleGetFunction", handleAt(1)).made(),
		timed(Module, "cuLibraryLoadData", handleAt(1)).made(),
		timed(Module, "cuLibraryLoadFromFile", handleAt(1)).made(),
		timed(Module, "cuLibraryUnload", handleAt(1)),
		timed(Module, "cuLibraryGetKernel", handleAt(1)).made(),
		timed(Module, "cuLibraryGetModule", handleAt(1)).made(),
		timed(Module, "cuKernelGetFunction", handleAt(1)).made(),
		timed(Module, "cuFuncLoad", handleAt(1)),
		timed(Module, "cuLinkAddData", handleAt(1), bytesAt(4)),
		timed(Module, "cuLinkAddFile", handleAt(1)),
		timed(Module, "cuLinkComplete", handleAt(1)),
		// Attributes are read, and the shared-memory limit is set, before every launch
		// of a CUTLASS or FlashAttention kernel.
		entry(Module, "cuFuncGetAttribute").hot(),
		entry(Module, "cuFuncSetAttribute").hot(),
		entry(Module, "cuKernelGetAttribute").hot(),
		entry(Module, "cuKernelSetAttribute").hot(),
		entry(Module, "cuModule*"),
		entry(Module, "cuLibrary*"),
		entry(Module, "cuKernel*"),
		entry(Module, "cuFunc*"),
		entry(Module, "cuLink*"),
	}
}
