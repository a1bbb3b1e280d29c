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
		timed(Memory, "cudaHostRegister", pointerAt(1), bytesAt(2)),
		timed(Memory, "cudaHostUnregister", pointerAt(1)),
		timed(Memory, "cudaIpcOpenMemHandle", pointerAt(1)).made(),
		timed(Memory, "cudaIpcCloseMemHandle", pointerAt(1)),
		timed(Memory, "cudaMemPoolCreate", handleAt(1)).made(),
		timed(Memory, "cudaMemPoolDestroy", handleAt(1)),
		timed(Memory, "cudaMemPoolTrimTo", handleAt(1), bytesAt(2)), // the bytes to keep
		timed(Memory, "cudaDeviceGraphMemTrim"),
		timed(Memory, "cudaMemPrefetchAsync", pointerAt(1), bytesAt(2), streamAt(4)),
		timed(Memory, "cudaMemPrefetchAsync_v2", pointerAt(1), bytesAt(2), streamAt(5)).
			only("cudaMemPrefetchAsync_v2", "cudaMemPrefetchAsync@13"),
		timed(Memory, "cudaMemPrefetchBatchAsync", streamAt(8)),
		timed(Memory, "cudaMemDiscardBatchAsync", streamAt(5)),
		timed(Memory, "cudaMemDiscardAndPrefetchBatchAsync", streamAt(8)),
		timed(Memory, "cudaMemAdvise", pointerAt(1), bytesAt(2)),
		timed(Memory, "cudaMemGetInfo"),
		entry(
			Memory,
			"cudaPointerGetAttributes",
		).hot(), // asked for each tensor by is_pinned and communication libraries
		entry(Memory, "cudaMem*").shadowed(),
		entry(Memory, "cudaHost*").shadowed(),
		entry(Memory, "cudaIpc*").shadowed(),
	}
}
