package cuda

// driverCopies are the copies of the driver API. All are timed: a copy from or to
// pageable memory blocks even where its name says Async.
func driverCopies() []Row {
	return []Row{
		timed(Copy, "cuMemcpy", dstAt(1), srcAt(2), bytesAt(3)).way(Unknown),
		timed(Copy, "cuMemcpyAsync", dstAt(1), srcAt(2), bytesAt(3), streamAt(4)).way(Unknown),
		timed(Copy, "cuMemcpyPeer", dstAt(1), srcAt(3), bytesAt(5)).way(Peer),
		timed(Copy, "cuMemcpyPeerAsync", dstAt(1), srcAt(3), bytesAt(5), streamAt(6)).way(Peer),
		timed(Copy, "cuMemcpyHtoD", dstAt(1), srcAt(2), bytesAt(3)).way(H2D),
		timed(Copy, "cuMemcpyDtoH", dstAt(1), srcAt(2), bytesAt(3)).way(D2H),
		timed(Copy, "cuMemcpyDtoD", dstAt(1), srcAt(2), bytesAt(3)).way(D2D),
		timed(Copy, "cuMemcpyHtoDAsync", dstAt(1), srcAt(2), bytesAt(3), streamAt(4)).way(H2D),
		timed(Copy, "cuMemcpyDtoHAsync", dstAt(1), srcAt(2), bytesAt(3), streamAt(4)).way(D2H),
		timed(Copy, "cuMemcpyDtoDAsync", dstAt(1), srcAt(2), bytesAt(3), streamAt(4)).way(D2D),

		// Arrays are objects, not addresses.
		timed(Copy, "cuMemcpyDtoA", handleAt(1), srcAt(3), bytesAt(4)).way(D2D),
		timed(Copy, "cuMemcpyAtoD", dstAt(1), handleAt(2), bytesAt(4)).way(D2D),
		timed(Copy, "cuMemcpyHtoA", handleAt(1), srcAt(3), bytesAt(4)).way(H2D),
		timed(Copy, "cuMemcpyAtoH", dstAt(1), handleAt(2), bytesAt(4)).way(D2H),
		timed(Copy, "cuMemcpyAtoA", handleAt(1), bytesAt(5)).way(D2D),
		timed(Copy, "cuMemcpyHtoAAsync", handleAt(1), srcAt(3), bytesAt(4), streamAt(5)).way(H2D),
		timed(Copy, "cuMemcpyAtoHAsync", dstAt(1), handleAt(2), bytesAt(4), streamAt(5)).way(D2H),

		described("cuMemcpy2D", shapeCopy2D, 0),
		described("cuMemcpy2DUnaligned", shapeCopy2D, 0),
		described("cuMemcpy2DAsync", shapeCopy2D, 2),
		described("cuMemcpy3D", shapeCopy3D, 0),
		described("cuMemcpy3DAsync", shapeCopy3D, 2),
		described("cuMemcpy3DPeer", shapeCopy3D, 0).way(Peer),
		described("cuMemcpy3DPeerAsync", shapeCopy3D, 2).way(Peer),

		// Batches keep their sizes in arrays: how many bytes is not known.
		timed(Copy, "cuMemcpyBatchAsync", streamAt(9)).way(Unknown),
		timed(Copy, "cuMemcpyBatchAsync_v2", streamAt(8)).way(Unknown).only("cuMemcpyBatchAsync_v2"),
		timed(Copy, "cuMemcpy3DBatchAsync", streamAt(5)).way(Unknown),
		timed(Copy, "cuMemcpy3DBatchAsync_v2", streamAt(4)).way(Unknown).only("cuMemcpy3DBatchAsync_v2"),
		timed(Copy, "cuMemcpyWithAttributesAsync", dstAt(1), srcAt(2), bytesAt(3), streamAt(5)).way(Unknown),
		timed(Copy, "cuMemcpy3DWithAttributesAsync", streamAt(3)).way(Unknown),
		timed(Copy, "cuFabricCpyBatchAsync", streamAt(4)).way(Unknown),
	}
}

// driverOldCopies are the signatures from before CUDA 3.2. They hold the plain
// names, take 32-bit sizes and device addresses, and every driver still exports them.
func driverOldCopies() []Row {
	old := func(name string, d Direction, slots ...slot) Row {
		return timed(Copy, name+"_v1", slots...).way(d).narrow().only(name)
	}
	return []Row{
		old("cuMemcpyHtoD", H2D, bytesAt(3)),
		old("cuMemcpyDtoH", D2H, bytesAt(3)),
		old("cuMemcpyDtoD", D2D, bytesAt(3)),
		old("cuMemcpyHtoDAsync", H2D, bytesAt(3), streamAt(4)),
		old("cuMemcpyDtoHAsync", D2H, bytesAt(3), streamAt(4)),
		old("cuMemcpyDtoDAsync", D2D, bytesAt(3), streamAt(4)),
		old("cuMemcpyDtoA", D2D, bytesAt(4)),
		old("cuMemcpyAtoD", D2D, bytesAt(4)),
		old("cuMemcpyHtoA", H2D, bytesAt(4)),
		old("cuMemcpyAtoH", D2H, bytesAt(4)),
		old("cuMemcpyAtoA", D2D, bytesAt(5)),
		old("cuMemcpyHtoAAsync", H2D, bytesAt(4), streamAt(5)),
		old("cuMemcpyAtoHAsync", D2H, bytesAt(4), streamAt(5)),
		// Their descriptors have another layout than those that the probe reads.
		old("cuMemcpy2D", Unknown),
		old("cuMemcpy2DUnaligned", Unknown),
		old("cuMemcpy2DAsync", Unknown, streamAt(2)),
		old("cuMemcpy3D", Unknown),
		old("cuMemcpy3DAsync", Unknown, streamAt(2)),
	}
}

// driverSets fill memory. Without Async in the name they can wait for the device;
// with it they only enqueue.
func driverSets() []Row {
	return []Row{
		timed(Set, "cuMemsetD8", dstAt(1), elementsAt(3)).each(1),
		timed(Set, "cuMemsetD16", dstAt(1), elementsAt(3)).each(2),
		timed(Set, "cuMemsetD32", dstAt(1), elementsAt(3)).each(4),
		timed(Set, "cuMemsetD2D8", dstAt(1), elementsAt(4), heightAt(5)).each(1),
		timed(Set, "cuMemsetD2D16", dstAt(1), elementsAt(4), heightAt(5)).each(2),
		timed(Set, "cuMemsetD2D32", dstAt(1), elementsAt(4), heightAt(5)).each(4),
		entry(Set, "cuMemsetD8Async", dstAt(1), elementsAt(3), streamAt(4)).each(1),
		entry(Set, "cuMemsetD16Async", dstAt(1), elementsAt(3), streamAt(4)).each(2),
		entry(Set, "cuMemsetD32Async", dstAt(1), elementsAt(3), streamAt(4)).each(4),
		entry(Set, "cuMemsetD2D8Async", dstAt(1), elementsAt(4), heightAt(5), streamAt(6)).each(1),
		entry(Set, "cuMemsetD2D16Async", dstAt(1), elementsAt(4), heightAt(5), streamAt(6)).each(2),
		entry(Set, "cuMemsetD2D32Async", dstAt(1), elementsAt(4), heightAt(5), streamAt(6)).each(4),

		// Before CUDA 3.2, under the plain names: 32-bit addresses and sizes.
		timed(Set, "cuMemsetD8_v1", elementsAt(3)).each(1).narrow().only("cuMemsetD8"),
		timed(Set, "cuMemsetD16_v1", elementsAt(3)).each(2).narrow().only("cuMemsetD16"),
		timed(Set, "cuMemsetD32_v1", elementsAt(3)).each(4).narrow().only("cuMemsetD32"),
		timed(Set, "cuMemsetD2D8_v1", elementsAt(4), heightAt(5)).each(1).narrow().only("cuMemsetD2D8"),
		timed(Set, "cuMemsetD2D16_v1", elementsAt(4), heightAt(5)).each(2).narrow().only("cuMemsetD2D16"),
		timed(Set, "cuMemsetD2D32_v1", elementsAt(4), heightAt(5)).each(4).narrow().only("cuMemsetD2D32"),
	}
}
