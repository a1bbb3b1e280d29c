package cuda

// runtimeAllocs make memory. Most carry the bytes that the driver call inside
// does not: the driver is asked for whole blocks.
func runtimeAllocs() []Row {
	return []Row{
		timed(Alloc, "cudaMalloc", pointerAt(1), bytesAt(2)).made(),
		timed(Alloc, "cudaMallocHost", pointerAt(1), bytesAt(2)).made(),
		timed(Alloc, "cudaHostAlloc", pointerAt(1), bytesAt(2)).made(),
		timed(Alloc, "cudaMallocManaged", pointerAt(1), bytesAt(2)).made(),
		// Width times height: the device rounds each row up to a pitch, so it takes at least that.
		timed(Alloc, "cudaMallocPitch", pointerAt(1), bytesAt(3), heightAt(4)).made(),
		timed(Alloc, "cudaMallocAsync", pointerAt(1), bytesAt(2), streamAt(3)).made(),
		timed(Alloc, "cudaMallocFromPoolAsync", pointerAt(1), bytesAt(2), handleAt(3), streamAt(4)).made(),
		timed(Alloc, "cudaMalloc3D"), // the extent is a structure by value
		timed(Alloc, "cudaMallocArray", handleAt(1)).made(),
		timed(Alloc, "cudaMalloc3DArray", handleAt(1)).made(),
		timed(Alloc, "cudaMallocMipmappedArray", handleAt(1)).made(),
		timed(Alloc, "cudaMalloc*"),

		timed(Free, "cudaFree", pointerAt(1)),
		timed(Free, "cudaFreeHost", pointerAt(1)),
		timed(Free, "cudaFreeAsync", pointerAt(1), streamAt(2)),
		timed(Free, "cudaFreeArray", handleAt(1)),
		timed(Free, "cudaFreeMipmappedArray", handleAt(1)),
		timed(Free, "cudaFree*"),
	}
}

// runtimeMemory pins, shares, moves and asks about memory.
func runtimeMemory() []Row {
	return []Row{
		timed(groupMemory, "cudaHostRegister", pointerAt(1), bytesAt(2)),
		timed(groupMemory, "cudaHostUnregister", pointerAt(1)),
		timed(groupMemory, "cudaIpcOpenMemHandle", pointerAt(1)).made(),
		timed(groupMemory, "cudaIpcCloseMemHandle", pointerAt(1)),
		timed(groupMemory, "cudaMemPoolCreate", handleAt(1)).made(),
		timed(groupMemory, "cudaMemPoolDestroy", handleAt(1)),
		timed(groupMemory, "cudaMemPoolTrimTo", handleAt(1), bytesAt(2)), // the bytes to keep
		timed(groupMemory, "cudaDeviceGraphMemTrim"),
		timed(groupMemory, "cudaMemPrefetchAsync", pointerAt(1), bytesAt(2), streamAt(4)),
		timed(groupMemory, "cudaMemPrefetchAsync_v2", pointerAt(1), bytesAt(2), streamAt(5)).
			only("cudaMemPrefetchAsync_v2", "cudaMemPrefetchAsync@13"),
		timed(groupMemory, "cudaMemPrefetchBatchAsync", streamAt(8)),
		timed(groupMemory, "cudaMemDiscardBatchAsync", streamAt(5)),
		timed(groupMemory, "cudaMemDiscardAndPrefetchBatchAsync", streamAt(8)),
		timed(groupMemory, "cudaMemAdvise", pointerAt(1), bytesAt(2)),
		timed(groupMemory, "cudaMemGetInfo"),
		entry(
			groupMemory,
			"cudaPointerGetAttributes",
		).hot(), // asked for each tensor by is_pinned and communication libraries
		entry(groupMemory, "cudaMem*").shadowed(),
		entry(groupMemory, "cudaHost*").shadowed(),
		entry(groupMemory, "cudaIpc*").shadowed(),
	}
}
