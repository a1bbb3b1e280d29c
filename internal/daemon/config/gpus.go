package config

import (
	"os"
	"strings"
)

// DevicesDir is where the NVIDIA driver lists its GPUs, one folder each.
const DevicesDir = "/proc/driver/nvidia/gpus"

// VisibleGPUs counts the GPUs of a DevicesDir that a program with this environment sees: CUDA C++ Programming Guide,
// "CUDA Environment Variables", and MIG User Guide, "CUDA Device Enumeration". 0 where there are none, or where that is
// not known.
func (e Environment) VisibleGPUs(dir string) int {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	list, set := e.Get("CUDA_VISIBLE_DEVICES")
	if !set {
		return len(entries)
	}
	n := 0
	for device := range strings.SplitSeq(list, ",") {
		if device = strings.TrimSpace(device); device == "" ||
			strings.HasPrefix(device, "-") { // nothing from there on is visible
			break
		}
		n++
		if strings.HasPrefix(device, "MIG-") { // a program has one part of one GPU, the first that it may see
			break
		}
	}
	return min(n, len(entries))
}
