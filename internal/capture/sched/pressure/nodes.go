package pressure

import (
	"path/filepath"
	"strconv"
	"strings"

	"github.com/inferscope/inferscope/internal/capture/procfile"
	"github.com/inferscope/inferscope/internal/recording"
)

// NodeOf returns the NUMA node of each CPU, by the CPU's number, -1 where none is known;
// nil where the host has one node, or none.
func NodeOf() []int { return files{}.nodeOf() }

func (f files) nodeOf() []int {
	dirs, _ := filepath.Glob(f.root + "/sys/devices/system/node/node[0-9]*") // the pattern is right
	if len(dirs) < 2 {
		return nil
	}
	var table []int
	for _, dir := range dirs {
		node, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "node"))
		list, _ := f.read(strings.TrimPrefix(dir, f.root) + "/cpulist")
		if err != nil {
			continue
		}
		cpus, _ := procfile.ParseCPUs(list) // a node may have none
		for _, cpu := range cpus {
			for len(table) <= cpu {
				table = append(table, -1)
			}
			table[cpu] = node
		}
	}
	return table
}

// maxGPUs bounds the GPUs of a host.
const maxGPUs = 256

// GPUs returns the NVIDIA GPUs of the host with the NUMA nodes that they are attached to, ordered by PCI address: what
// the driver shows under /proc/driver/nvidia/gpus (its README, "The /proc interface"). A GPU whose UUID the driver
// does not know yet is left out.
func GPUs() []recording.HostGPU { return files{}.gpus() }

func (f files) gpus() []recording.HostGPU {
	dirs, _ := filepath.Glob(f.root + "/proc/driver/nvidia/gpus/*") // sorted; the pattern is right
	var out []recording.HostGPU
	for _, dir := range dirs[:min(len(dirs), maxGPUs)] {
		text, _ := f.read(strings.TrimPrefix(dir, f.root) + "/information")
		g := recording.HostGPU{Bus: strings.ToLower(filepath.Base(dir)), Node: -1}
		for line := range strings.Lines(text) {
			if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "GPU UUID" {
				g.UUID = strings.TrimSpace(value)
			}
		}
		if g.UUID == "" || strings.Contains(g.UUID, "?") {
			continue
		}
		text, _ = f.read("/sys/bus/pci/devices/" + g.Bus + "/numa_node")
		if node, err := strconv.Atoi(strings.TrimSpace(text)); err == nil && node >= 0 {
			g.Node = node
		}
		out = append(out, g)
	}
	return out
}
