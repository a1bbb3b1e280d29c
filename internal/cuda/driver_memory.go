package cuda

// driverAllocs make memory.
func driverAllocs() []Row {
	return []Row{
		timed(Alloc, "cuMemAlloc", pointerAt(1), bytesAt(2)).made(),
		// Width times height: the device rounds each row up to a pitch, so it takes at least that.
		timed(Alloc, "cuMemAllocPitch", pointerAt(1), bytesAt(3), heightAt(4)).made(),
		timed(Alloc, "cuMemAllocHost", pointerAt(1), bytesAt(2)).made(),
		timed(Alloc, "cuMemHostAlloc", pointerAt(1), bytesAt(2)).made(),
		timed(Alloc, "cuMemAllocManaged", pointerAt(1), bytesAt(2)).made(),
		timed(Alloc, "cuMemAllocAsync", pointerAt(1), bytesAt(2), streamAt(3)).made(),
		timed(Alloc, "cuMemAllocFromPoolAsync", pointerAt(1), bytesAt(2), handleAt(3), streamAt(4)).made(),
		timed(Alloc, "cuMemCreate", handleAt(1), bytesAt(2)).made(), // physical memory, without an address
		timed(Alloc, "cuArrayCreate", handleAt(1)).made(),
		timed(Alloc, "cuArray3DCreate", handleAt(1)).made(),
		timed(Alloc, "cuMipmappedArrayCreate", handleAt(1)).made(),

		// Before CUDA 3.2, under the plain names: 32-bit sizes and results.
		timed(Alloc, "cuMemAlloc_v1", bytesAt(2)).narrow().only("cuMemAlloc"),
		timed(Alloc, "cuMemAllocPitch_v1", bytesAt(3), heightAt(4)).narrow().only("cuMemAllocPitch"),
		timed(Alloc, "cuMemAllocHost_v1", pointerAt(1), bytesAt(2)).made().narrow().only("cuMemAllocHost"),
	}
}

// driverFrees give memory back. cuMemFree waits for the device.
func driverFrees() []Row {
	return []Row{
		timed(Free, "cuMemFree", pointerAt(1)),
		timed(Free, "cuMemFree_v1").only("cuMemFree"), // a 32-bit address
		timed(Free, "cuMemFreeHost", pointerAt(1)),
		timed(Free, "cuMemFreeAsync", pointerAt(1), streamAt(2)),
		timed(Free, "cuMemRelease", handleAt(1)),
		timed(Free, "cuArrayDestroy", handleAt(1)),
		timed(Free, "cuMipmappedArrayDestroy", handleAt(1)),
	}
}

// driverMemory maps, pins, shares, moves and asks about memory.
func driverMemory() []Row {
	return []Row{
		// Pinning walks every page, and mapping and access change page tables on all
		// devices: milliseconds for large ranges.
		timed(groupMemory, "cuMemHostRegister", pointerAt(1), bytesAt(2)),
		timed(groupMemory, "cuMemHostUnregister", pointerAt(1)),
		timed(groupMemory, "cuMemAddressReserve", pointerAt(1), bytesAt(2)).made(),
		timed(groupMemory, "cuMemAddressFree", pointerAt(1), bytesAt(2)),
		timed(groupMemory, "cuMemMap", pointerAt(1), bytesAt(2), handleAt(4)),
		timed(groupMemory, "cuMemUnmap", pointerAt(1), bytesAt(2)),
		timed(groupMemory, "cuMemSetAccess", pointerAt(1), bytesAt(2)),
		timed(groupMemory, "cuMemMapArrayAsync", streamAt(3)),
		timed(groupMemory, "cuMemImportFromShareableHandle", handleAt(1)).made(),
		timed(groupMemory, "cuIpcOpenMemHandle", pointerAt(1)).made(),
		timed(groupMemory, "cuIpcCloseMemHandle", pointerAt(1)),
		timed(groupMemory, "cuMemPoolCreate", handleAt(1)).made(),
		timed(groupMemory, "cuMemPoolDestroy", handleAt(1)),
		timed(groupMemory, "cuMemPoolTrimTo", handleAt(1), bytesAt(2)), // the bytes to keep
		timed(groupMemory, "cuDeviceGraphMemTrim"),

		timed(groupMemory, "cuMemPrefetchAsync", pointerAt(1), bytesAt(2), streamAt(4)),
		timed(groupMemory, "cuMemPrefetchAsync_v2", pointerAt(1), bytesAt(2),
			streamAt(5)).only("cuMemPrefetchAsync_v2"),
		timed(groupMemory, "cuMemPrefetchBatchAsync", streamAt(8)),
		timed(groupMemory, "cuMemDiscardBatchAsync", streamAt(5)),
		timed(groupMemory, "cuMemDiscardAndPrefetchBatchAsync", streamAt(8)),
		timed(groupMemory, "cuMemAdvise", pointerAt(1), bytesAt(2)),
		entry(groupMemory, "cuMemBatchDecompressAsync", streamAt(5)),

		timed(groupMemory, "cuMemGetInfo"), // asks the kernel driver, behind its locks

		// Asked for each pointer of each launch by Triton's launcher, and for each
		// buffer of each message by communication libraries.
		entry(groupMemory, "cuPointerGetAttribute").hot(),
		entry(groupMemory, "cuPointerGetAttributes").hot(),
		entry(groupMemory, "cuMemGetAddressRange").hot(),
		entry(groupMemory, "cuMemGetAttribute").hot(),

		entry(groupMemory, "cuPointer*"),
		entry(groupMemory, "cuMem*"),
		entry(groupMemory, "cuIpc*"),
		entry(groupMemory, "cuMulticast*"),
		entry(groupMemory, "cuArray*"),
		entry(groupMemory, "cuMipmappedArray*"),
	}
}
