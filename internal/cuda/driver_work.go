package cuda

// driverLaunches start kernels. None is timed: a return probe costs as much as
// the entry, and the duration of a launch is a constant of the driver except when
// the queue is full.
func driverLaunches() []Row {
	return []Row{
		shaped("cuLaunchKernel", shapeLaunch),
		shaped("cuLaunchKernelEx", shapeLaunchEx),
		shaped("cuLaunchCooperativeKernel", shapeLaunch),
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

		timed(groupStream, "cuStreamCreate", streamAt(1)).made(),
		timed(groupStream, "cuStreamCreateWithPriority", streamAt(1)).made(),
		timed(groupStream, "cuGreenCtxStreamCreate", streamAt(1), handleAt(2)).made(),
		timed(groupStream, "cuStreamDestroy", streamAt(1)),
		entry(groupStream, "cuStreamQuery", streamAt(1)),
		entry(groupStream, "cuStreamWaitEvent", streamAt(1), handleAt(2)),
		entry(groupStream, "cuStreamAddCallback", streamAt(1), handleAt(2)),
		entry(groupStream, "cuLaunchHostFunc", streamAt(1), handleAt(2)),
		entry(groupStream, "cuStreamAttachMemAsync", streamAt(1), pointerAt(2), bytesAt(3)),
		entry(groupStream, "cuStreamWaitValue32", streamAt(1), pointerAt(2)),
		entry(groupStream, "cuStreamWaitValue64", streamAt(1), pointerAt(2)),
		entry(groupStream, "cuStreamWriteValue32", streamAt(1), pointerAt(2)),
		entry(groupStream, "cuStreamWriteValue64", streamAt(1), pointerAt(2)),
		entry(groupStream, "cuStreamBatchMemOp", streamAt(1)),
		entry(groupStream, "cuSignalExternalSemaphoresAsync", streamAt(4)),
		entry(groupStream, "cuWaitExternalSemaphoresAsync", streamAt(4)),
		// Asked by allocators and communication libraries before each of their steps.
		entry(groupStream, "cuStreamIsCapturing").hot(),
		entry(groupStream, "cuStreamGetCaptureInfo").hot(),
		entry(groupStream, "cuStream*"),

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
