package gpu

import "maps"

// maxCBID is above every callback id of the driver API (CUPTI 13.5 ends at 881).
const maxCBID = 1024

// driverCalls returns the names of the driver functions whose calls agents tell of, by
// CUpti_driver_api_trace_cbid. CUPTI never gives a number to another function; TestCBIDs
// compares them with the headers of CUPTI 11.8, 12.9 and 13.
func driverCalls() map[uint16]string {
	all := map[uint16]string{}
	for _, group := range []map[uint16]string{
		driverLaunches(), driverSets(), driverCopies(), driverThreadCopies(), driverWaits(),
	} {
		maps.Copy(all, group)
	}
	return all
}

func driverLaunches() map[uint16]string {
	return map[uint16]string{
		115: "cuLaunch",
		116: "cuLaunchGrid",
		117: "cuLaunchGridAsync",
		307: "cuLaunchKernel",
		442: "cuLaunchKernel_ptsz",
		477: "cuLaunchCooperativeKernel",
		478: "cuLaunchCooperativeKernel_ptsz",
		480: "cuLaunchCooperativeKernelMultiDevice",
		514: "cuGraphLaunch",
		515: "cuGraphLaunch_ptsz",
		652: "cuLaunchKernelEx",
		653: "cuLaunchKernelEx_ptsz",
	}
}

func driverSets() map[uint16]string {
	return map[uint16]string{
		216: "cuMemsetD8Async",
		218: "cuMemsetD16Async",
		220: "cuMemsetD32Async",
		222: "cuMemsetD2D8Async",
		224: "cuMemsetD2D16Async",
		226: "cuMemsetD2D32Async",
		249: "cuMemsetD8_v2",
		250: "cuMemsetD16_v2",
		251: "cuMemsetD32_v2",
		252: "cuMemsetD2D8_v2",
		253: "cuMemsetD2D16_v2",
		254: "cuMemsetD2D32_v2",
		411: "cuMemsetD8_v2_ptds",
		412: "cuMemsetD16_v2_ptds",
		413: "cuMemsetD32_v2_ptds",
		414: "cuMemsetD2D8_v2_ptds",
		415: "cuMemsetD2D16_v2_ptds",
		416: "cuMemsetD2D32_v2_ptds",
		428: "cuMemsetD8Async_ptsz",
		429: "cuMemsetD16Async_ptsz",
		430: "cuMemsetD32Async_ptsz",
		431: "cuMemsetD2D8Async_ptsz",
		432: "cuMemsetD2D16Async_ptsz",
		433: "cuMemsetD2D32Async_ptsz",
	}
}

func driverCopies() map[uint16]string {
	return map[uint16]string{
		276: "cuMemcpyHtoD_v2",
		277: "cuMemcpyHtoDAsync_v2",
		278: "cuMemcpyDtoH_v2",
		279: "cuMemcpyDtoHAsync_v2",
		280: "cuMemcpyDtoD_v2",
		281: "cuMemcpyDtoDAsync_v2",
		282: "cuMemcpyAtoH_v2",
		283: "cuMemcpyAtoHAsync_v2",
		284: "cuMemcpyAtoD_v2",
		285: "cuMemcpyDtoA_v2",
		286: "cuMemcpyAtoA_v2",
		287: "cuMemcpy2D_v2",
		288: "cuMemcpy2DUnaligned_v2",
		289: "cuMemcpy2DAsync_v2",
		290: "cuMemcpy3D_v2",
		291: "cuMemcpy3DAsync_v2",
		292: "cuMemcpyHtoA_v2",
		293: "cuMemcpyHtoAAsync_v2",
		305: "cuMemcpy",
		306: "cuMemcpyAsync",
		318: "cuMemcpyPeer",
		319: "cuMemcpyPeerAsync",
		320: "cuMemcpy3DPeer",
		321: "cuMemcpy3DPeerAsync",
		776: "cuMemcpyBatchAsync",
		778: "cuMemcpy3DBatchAsync",
		796: "cuMemcpyBatchAsync_v2",
		798: "cuMemcpy3DBatchAsync_v2",
		837: "cuMemcpyWithAttributesAsync",
		839: "cuMemcpy3DWithAttributesAsync",
	}
}

// driverThreadCopies are the copies on the calling thread's default stream.
func driverThreadCopies() map[uint16]string {
	return map[uint16]string{
		397: "cuMemcpyHtoD_v2_ptds",
		398: "cuMemcpyDtoH_v2_ptds",
		399: "cuMemcpyDtoD_v2_ptds",
		400: "cuMemcpyDtoA_v2_ptds",
		401: "cuMemcpyAtoD_v2_ptds",
		402: "cuMemcpyHtoA_v2_ptds",
		403: "cuMemcpyAtoH_v2_ptds",
		404: "cuMemcpyAtoA_v2_ptds",
		405: "cuMemcpy2D_v2_ptds",
		406: "cuMemcpy2DUnaligned_v2_ptds",
		407: "cuMemcpy3D_v2_ptds",
		408: "cuMemcpy_ptds",
		409: "cuMemcpyPeer_ptds",
		410: "cuMemcpy3DPeer_ptds",
		418: "cuMemcpyAsync_ptsz",
		419: "cuMemcpyHtoAAsync_v2_ptsz",
		420: "cuMemcpyAtoHAsync_v2_ptsz",
		421: "cuMemcpyHtoDAsync_v2_ptsz",
		422: "cuMemcpyDtoHAsync_v2_ptsz",
		423: "cuMemcpyDtoDAsync_v2_ptsz",
		424: "cuMemcpy2DAsync_v2_ptsz",
		425: "cuMemcpy3DAsync_v2_ptsz",
		426: "cuMemcpyPeerAsync_ptsz",
		427: "cuMemcpy3DPeerAsync_ptsz",
		777: "cuMemcpyBatchAsync_ptsz",
		779: "cuMemcpy3DBatchAsync_ptsz",
		797: "cuMemcpyBatchAsync_v2_ptsz",
		799: "cuMemcpy3DBatchAsync_v2_ptsz",
		838: "cuMemcpyWithAttributesAsync_ptsz",
		840: "cuMemcpy3DWithAttributesAsync_ptsz",
	}
}

func driverWaits() map[uint16]string {
	return map[uint16]string{
		17:  "cuCtxSynchronize",
		121: "cuEventSynchronize",
		126: "cuStreamSynchronize",
		440: "cuStreamSynchronize_ptsz",
		800: "cuCtxSynchronize_v2",
	}
}

// callTable turns callback ids into indexes of the recording's function table. It is used
// by one goroutine.
type callTable struct {
	names map[uint16]string
	index func(name string) (uint16, bool)
	found [maxCBID]foundCall
}

// foundCall is what is known of one callback id.
type foundCall struct {
	looked, ok bool
	index      uint16
}

func newCallTable(index func(string) (uint16, bool)) *callTable {
	return &callTable{names: driverCalls(), index: index}
}

// lookup returns false for an id that no agent may send.
func (t *callTable) lookup(cbid uint16) (uint16, bool) {
	if cbid >= maxCBID {
		return 0, false
	}
	f := &t.found[cbid]
	if !f.looked {
		f.looked = true
		if name, ok := t.names[cbid]; ok {
			f.index, f.ok = t.index(name)
		}
	}
	return f.index, f.ok
}
