package cuda

// runtimeLaunches start kernels. Each makes one driver launch, which is probed
// instead: two probes would double the cost of what happens most often. (The
// exported __cudaLaunchKernel only jumps to cudaLaunchKernel.)
func runtimeLaunches() []Row {
	return []Row{
		shaped("cudaLaunchKernel", shapeRTLaunch).shadowed(),
		shaped("cudaLaunchCooperativeKernel", shapeRTLaunch).shadowed(),
		shaped("cudaLaunchKernelExC", shapeRTLaunchEx).shadowed(),
		entry(Launch, "cudaLaunchCooperativeKernelMultiDevice").shadowed(),
		entry(Launch, "cudaLaunch*").shadowed(),
	}
}

// runtimeStreams are streams, events and what waits for them. On driver 580 each
// shadowed function that was tried made exactly one call of its driver twin.
func runtimeStreams() []Row {
	return []Row{
		timed(Sync, "cudaStreamSynchronize", streamAt(1)),
		timed(Sync, "cudaEventSynchronize", handleAt(1)),
		timed(Sync, "cudaDeviceSynchronize"),
		timed(Sync, "cudaThreadSynchronize"),
		timed(Sync, "cudaExecutionCtxSynchronize", handleAt(1)),
		timed(Sync, "cudaDeviceFlushGPUDirectRDMAWrites"),

		timed(groupStream, "cudaStreamCreate", streamAt(1)).made(),
		timed(groupStream, "cudaStreamCreateWithFlags", streamAt(1)).made(),
		timed(groupStream, "cudaStreamCreateWithPriority", streamAt(1)).made(),
		timed(groupStream, "cudaExecutionCtxStreamCreate", streamAt(1), handleAt(2)).made(),
		timed(groupStream, "cudaStreamDestroy", streamAt(1)),
		entry(groupStream, "cudaStreamQuery", streamAt(1)).shadowed(),
		entry(groupStream, "cudaStreamWaitEvent", streamAt(1), handleAt(2)).shadowed(),
		entry(groupStream, "cudaStreamAddCallback", streamAt(1), handleAt(2)).shadowed(),
		entry(groupStream, "cudaLaunchHostFunc", streamAt(1), handleAt(2)).shadowed(),
		entry(groupStream, "cudaStreamAttachMemAsync", streamAt(1), pointerAt(2), bytesAt(3)).shadowed(),
		entry(groupStream, "cudaSignalExternalSemaphoresAsync", streamAt(4)).shadowed(),
		entry(groupStream, "cudaWaitExternalSemaphoresAsync", streamAt(4)).shadowed(),
		entry(groupStream, "cudaStreamIsCapturing").shadowed().hot(), // PyTorch's allocator asks for each block
		entry(groupStream, "cudaStreamGetCaptureInfo").shadowed().hot(),
		entry(groupStream, "cudaStream*").shadowed(),

		entry(Event, "cudaEventCreate").shadowed(),
		entry(Event, "cudaEventDestroy", handleAt(1)).shadowed(),
		entry(Event, "cudaEventRecord", handleAt(1), streamAt(2)).shadowed(),
		entry(Event, "cudaEventRecordWithFlags", handleAt(1), streamAt(2)).shadowed(),
		entry(Event, "cudaEventQuery", handleAt(1)).shadowed(),
		entry(Event, "cudaEventElapsedTime", handleAt(2)).shadowed(),
		entry(Event, "cudaEvent*").shadowed(),
	}
}

// runtimeGraphs build, instantiate and launch graphs.
func runtimeGraphs() []Row {
	return []Row{
		timed(Graph, "cudaGraphInstantiate", handleAt(1)).made(),
		timed(Graph, "cudaGraphInstantiateWithFlags", handleAt(1)).made(),
		timed(Graph, "cudaGraphInstantiateWithParams", handleAt(1)).made(),
		timed(Graph, "cudaGraphLaunch", handleAt(1), streamAt(2)),
		timed(Graph, "cudaGraphUpload", handleAt(1), streamAt(2)),
		timed(Graph, "cudaGraphExecUpdate", handleAt(1)),
		timed(Graph, "cudaGraphExecDestroy", handleAt(1)),
		timed(Graph, "cudaGraphDestroy", handleAt(1)),
		timed(Graph, "cudaGraphClone", handleAt(1)).made(),
		entry(Graph, "cudaStreamBeginCapture", streamAt(1)).shadowed(),
		entry(Graph, "cudaStreamBeginCaptureToGraph", streamAt(1), handleAt(2)).shadowed(),
		entry(Graph, "cudaStreamBeginRecaptureToGraph", streamAt(1), handleAt(3)).shadowed(),
		timed(Graph, "cudaStreamEndCapture", handleAt(2), streamAt(1)).made(),
		entry(Graph, "cudaGraphKernelNodeGetParams").shadowed().hot(),
		entry(Graph, "cudaGraphMemcpyNodeGetParams").shadowed().hot(),
		entry(Graph, "cudaGraphNodeGet*").shadowed().hot(),
		entry(Graph, "cudaThreadExchangeStreamCaptureMode").shadowed().hot(),
		entry(Graph, "cudaGraph*").shadowed(),
	}
}

// runtimeSetup finds devices, makes contexts and loads code.
func runtimeSetup() []Row {
	return []Row{
		timed(groupInit, "cudaInitDevice"),
		entry(groupInit, "cudaRuntimeGetVersion").hot(),
		entry(groupInit, "cudaDriverGetVersion").hot(),
		timed(groupContext, "cudaDeviceReset"),
		timed(groupContext, "cudaThreadExit"),
		entry(groupContext, "cudaExecutionCtx*").shadowed(),

		// Asked around every operation (numbers in driver_setup.go): c10::cuda guards set
		// and get the device, and every launch macro is followed by cudaGetLastError.
		entry(Device, "cudaGetDevice").hot(),
		entry(Device, "cudaSetDevice").hot(),
		entry(Device, "cudaGetLastError").hot(),
		entry(Device, "cudaPeekAtLastError").hot(),
		entry(Device, "cudaDeviceGetAttribute").hot(),
		entry(Device, "cudaGetDevice*"),
		entry(Device, "cudaDevice*"),

		timed(Module, "cudaLibraryLoadData", handleAt(1)).made(),
		timed(Module, "cudaLibraryLoadFromFile", handleAt(1)).made(),
		timed(Module, "cudaLibraryUnload", handleAt(1)),
		timed(Module, "cudaLibraryGetKernel", handleAt(1)).made(),
		entry(Module, "cudaFuncGetAttributes").hot(),
		entry(Module, "cudaFuncSetAttribute").hot(),
		entry(Module, "cudaLibrary*").shadowed(),
		entry(Module, "cudaFunc*").shadowed(),
	}
}
