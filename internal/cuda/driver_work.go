package cuda

// driverLaunches start kernels. None is timed: a return probe costs as much as
// the entry, and the duration of a launch is a constant of the driver except when
// the queue is full.
func driverLaunches() []Row {
	return []Row{
		shaped("cuLaunchKernel", LaunchArgs),
		shaped("cuLaunchKernelEx", LaunchEx),
		shaped("cuLaunchCooperativeKernel", LaunchArgs),
		entry(Launch, "cuLaunchCooperativeKernelMultiDevice"),
		entry(Launch, "cuLaunch", handleAt(1)),
		entry(Launch, "cuLaunchGrid", handleAt(1)),
		entry(Launch, "cuLaunchGridAsync", handleAt(1), streamAt(4)),
		entry(Launch, "cuLaunch*"),
	}
}

// driverStreams are streams, events and what waits for them.
func driverStreams() []Row {
	return []Row{
		timed(Sync, "cuStreamSynchronize", streamAt(1)),
		timed(Sync, "cuEventSynchronize", handleAt(1)),
		timed(Sync, "cuCtxSynchronize"),
		timed(Sync, "cuCtxSynchronize_v2", handleAt(1)).only("cuCtxSynchronize_v2"), // CUDA 13: of the given context
		timed(Sync, "cuFlushGPUDirectRDMAWrites"),

		timed(Stream, "cuStreamCreate", streamAt(1)).made(),
		timed(Stream, "cuStreamCreateWithPriority", streamAt(1)).made(),
		timed(Stream, "cuGreenCtxStreamCreate", streamAt(1), handleAt(2)).made(),
		timed(Stream, "cuStreamDestroy", streamAt(1)),
		entry(Stream, "cuStreamQuery", streamAt(1)),
		entry(Stream, "cuStreamWaitEvent", streamAt(1), handleAt(2)),
		entry(Stream, "cuStreamAddCallback", streamAt(1), handleAt(2)),
		entry(Stream, "cuLaunchHostFunc", streamAt(1), handleAt(2)),
		entry(Stream, "cuStreamAttachMemAsync", streamAt(1), pointerAt(2), bytesAt(3)),
		entry(Stream, "cuStreamWaitValue32", streamAt(1), pointerAt(2)),
		entry(Stream, "cuStreamWaitValue64", streamAt(1), pointerAt(2)),
		entry(Stream, "cuStreamWriteValue32", streamAt(1), pointerAt(2)),
		entry(Stream, "cuStreamWriteValue64", streamAt(1), pointerAt(2)),
		entry(Stream, "cuStreamBatchMemOp", streamAt(1)),
		entry(Stream, "cuSignalExternalSemaphoresAsync", streamAt(4)),
		entry(Stream, "cuWaitExternalSemaphoresAsync", streamAt(4)),
		// Asked by allocators and communication libraries before each of their steps.
		entry(Stream, "cuStreamIsCapturing").hot(),
		entry(Stream, "cuStreamGetCaptureInfo").hot(),
		entry(Stream, "cuStream*"),

		entry(Event, "cuEventCreate"),
		entry(Event, "cuEventDestroy", handleAt(1)),
		entry(Event, "cuEventRecord", handleAt(1), streamAt(2)),
		entry(Event, "cuEventRecordWithFlags", handleAt(1), streamAt(2)),
		entry(Event, "cuEventQuery", handleAt(1)),
		entry(Event, "cuEventElapsedTime", handleAt(2)),
		entry(Event, "cuEvent*"),
	}
}

// driverGraphs build, instantiate and launch graphs.
func driverGraphs() []Row {
	return []Row{
		timed(Graph, "cuGraphInstantiate", handleAt(1)).made(),
		timed(Graph, "cuGraphInstantiateWithFlags", handleAt(1)).made(),
		timed(Graph, "cuGraphInstantiateWithParams", handleAt(1)).made(),
		timed(Graph, "cuGraphLaunch", handleAt(1), streamAt(2)),
		timed(Graph, "cuGraphUpload", handleAt(1), streamAt(2)),
		timed(Graph, "cuGraphExecUpdate", handleAt(1)),
		timed(Graph, "cuGraphExecDestroy", handleAt(1)),
		timed(Graph, "cuGraphDestroy", handleAt(1)),
		timed(Graph, "cuGraphClone", handleAt(1)).made(),
		entry(Graph, "cuStreamBeginCapture", streamAt(1)),
		entry(Graph, "cuStreamBeginCaptureToGraph", streamAt(1), handleAt(2)),
		entry(Graph, "cuStreamBeginRecaptureToGraph", streamAt(1), handleAt(3)),
		timed(Graph, "cuStreamEndCapture", handleAt(2), streamAt(1)).made(),
		// llama.cpp asks these for each node of the graph at each token.
		entry(Graph, "cuGraphKernelNodeGetParams").hot(),
		entry(Graph, "cuGraphMemcpyNodeGetParams").hot(),
		entry(Graph, "cuGraphNodeGet*").hot(),
		entry(Graph, "cuThreadExchangeStreamCaptureMode").hot(),
		entry(Graph, "cuGraph*"),
	}
}
