package cuda

// runtimeCopies are the copies of the runtime API. The runtime knows the direction
// that the program asked for; the driver call inside tells where the copy really went.
func runtimeCopies() []Row {
	return []Row{
		timed(Copy, "cudaMemcpy", dstAt(1), srcAt(2), bytesAt(3)).kind(4),
		timed(Copy, "cudaMemcpyAsync", dstAt(1), srcAt(2), bytesAt(3), streamAt(5)).kind(4),
		timed(Copy, "cudaMemcpyPeer", dstAt(1), srcAt(3), bytesAt(5)).way(Peer),
		timed(Copy, "cudaMemcpyPeerAsync", dstAt(1), srcAt(3), bytesAt(5), streamAt(6)).way(Peer),
		timed(Copy, "cudaMemcpyToSymbol", srcAt(2), bytesAt(3)).kind(5),
		timed(Copy, "cudaMemcpyToSymbolAsync", srcAt(2), bytesAt(3), streamAt(6)).kind(5),
		timed(Copy, "cudaMemcpyFromSymbol", dstAt(1), bytesAt(3)).kind(5),
		timed(Copy, "cudaMemcpyFromSymbolAsync", dstAt(1), bytesAt(3), streamAt(6)).kind(5),

		// Width in bytes times height. There is room for four parameters, so the
		// asynchronous ones name their destination only.
		timed(Copy, "cudaMemcpy2D", dstAt(1), srcAt(3), bytesAt(5), heightAt(6)).kind(7),
		timed(Copy, "cudaMemcpy2DAsync", dstAt(1), bytesAt(5), heightAt(6), streamAt(8)).kind(7),
		timed(Copy, "cudaMemcpy2DToArray", handleAt(1), srcAt(4), bytesAt(6), heightAt(7)).kind(8),
		timed(Copy, "cudaMemcpy2DToArrayAsync", handleAt(1), bytesAt(6), heightAt(7), streamAt(9)).kind(8),
		timed(Copy, "cudaMemcpy2DFromArray", dstAt(1), handleAt(3), bytesAt(6), heightAt(7)).kind(8),
		timed(Copy, "cudaMemcpy2DFromArrayAsync", dstAt(1), bytesAt(6), heightAt(7), streamAt(9)).kind(8),
		timed(Copy, "cudaMemcpy2DArrayToArray", handleAt(1), bytesAt(7), heightAt(8)).kind(9),
		timed(Copy, "cudaMemcpyToArray", handleAt(1), srcAt(4), bytesAt(5)).kind(6),
		timed(Copy, "cudaMemcpyToArrayAsync", handleAt(1), srcAt(4), bytesAt(5), streamAt(7)).kind(6),
		timed(Copy, "cudaMemcpyFromArray", dstAt(1), handleAt(2), bytesAt(5)).kind(6),
		timed(Copy, "cudaMemcpyFromArrayAsync", dstAt(1), handleAt(2), bytesAt(5), streamAt(7)).kind(6),
		timed(Copy, "cudaMemcpyArrayToArray", handleAt(1), bytesAt(7)).kind(8),

		// Their descriptors are the runtime's own; the driver call inside has the bytes.
		timed(Copy, "cudaMemcpy3D").way(Unknown),
		timed(Copy, "cudaMemcpy3DAsync", streamAt(2)).way(Unknown),
		timed(Copy, "cudaMemcpy3DPeer").way(Peer),
		timed(Copy, "cudaMemcpy3DPeerAsync", streamAt(2)).way(Peer),
		timed(Copy, "cudaMemcpyBatchAsync", streamAt(9)).way(Unknown),
		timed(Copy, "cudaMemcpyBatchAsync_v2", streamAt(8)).way(Unknown).
			only("cudaMemcpyBatchAsync_v2", "cudaMemcpyBatchAsync@13"),
		timed(Copy, "cudaMemcpy3DBatchAsync", streamAt(5)).way(Unknown),
		timed(Copy, "cudaMemcpy3DBatchAsync_v2", streamAt(4)).way(Unknown).
			only("cudaMemcpy3DBatchAsync_v2", "cudaMemcpy3DBatchAsync@13"),
		timed(Copy, "cudaMemcpyWithAttributesAsync", dstAt(1), srcAt(2), bytesAt(3), streamAt(5)).way(Unknown),
		timed(Copy, "cudaMemcpy3DWithAttributesAsync", streamAt(3)).way(Unknown),
		timed(Copy, "cudaMemcpy*").way(Unknown),
	}
}

// runtimeSets fill memory. The asynchronous ones only enqueue, and the driver call
// inside says the same.
func runtimeSets() []Row {
	return []Row{
		timed(Set, "cudaMemset", dstAt(1), bytesAt(3)),
		timed(Set, "cudaMemset2D", dstAt(1), bytesAt(4), heightAt(5)),
		entry(Set, "cudaMemsetAsync", dstAt(1), bytesAt(3), streamAt(4)).shadowed(),
		entry(Set, "cudaMemset2DAsync", dstAt(1), bytesAt(4), heightAt(5), streamAt(6)).shadowed(),
		// Structures of 32 and 24 bytes by value, which each ABI passes in its own way.
		timed(Set, "cudaMemset3D"),
		entry(Set, "cudaMemset3DAsync").shadowed(),
	}
}
