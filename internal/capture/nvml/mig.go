package nvml

import (
	"encoding/xml"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/recording"
)

// maxParts bounds the parts of all GPUs (MIG); a GPU has seven at most.
const maxParts = maxGPUs * 8

// askParts asks for the parts of divided GPUs; where no GPU is divided, it forgets those it knew.
func (s *Source) askParts(stop <-chan struct{}) {
	var list []recording.GPUPart
	var err error
	if s.divided() {
		list, err = s.partsNow(stop)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parts, s.partsErr = list, err
}

// divided reports whether the last sample of a GPU says that it is divided.
func (s *Source) divided() bool {
	return slices.ContainsFunc(s.Latest(), func(one recording.Sensor) bool { return one.MIG })
}

func (s *Source) partsNow(stop <-chan struct{}) ([]recording.GPUPart, error) {
	names, err := s.ask(stop, "-L")
	if err != nil {
		return nil, err
	}
	details, err := s.ask(stop, "-q", "-x")
	if err != nil {
		return nil, err
	}
	return parseParts(names, details, clock.Monotonic())
}

// listedGPU and listedPart are lines of nvidia-smi -L:
// GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0a1b)
// MIG 1g.5gb      Device  0: (UUID: MIG-2c3d)
var (
	listedGPU  = regexp.MustCompile(`^GPU (\d{1,2}): .{0,100}\(UUID: (GPU-[0-9a-fA-F-]{1,60})\)`)
	listedPart = regexp.MustCompile(`^\s+MIG (\S{1,32})\s+Device\s+(\d{1,2}): \(UUID: (MIG-[0-9a-zA-Z/-]{1,100})\)`)
)

// smiLog is what is read of nvidia-smi -q -x.
type smiLog struct {
	GPUs []struct {
		UUID  string `xml:"uuid"`
		Parts []struct {
			Index    string `xml:"index"`
			Instance string `xml:"gpu_instance_id"`
			Total    string `xml:"fb_memory_usage>total"`
			Used     string `xml:"fb_memory_usage>used"`
		} `xml:"mig_devices>mig_device"`
	} `xml:"gpu"`
}

// parseParts joins the list of parts with what is said of the memory of each.
func parseParts(names, details string, at uint64) ([]recording.GPUPart, error) {
	var log smiLog
	if err := xml.Unmarshal([]byte(details), &log); err != nil {
		return nil, fmt.Errorf("read what nvidia-smi says of parts: %w", err)
	}
	list := listParts(names, at)
	for _, gpu := range log.GPUs {
		for _, part := range gpu.Parts {
			i := slices.IndexFunc(list, func(p recording.GPUPart) bool {
				return p.GPUUUID == strings.TrimSpace(gpu.UUID) && strconv.Itoa(p.Index) == strings.TrimSpace(part.Index)
			})
			if i < 0 {
				continue
			}
			list[i].Instance, _ = strconv.Atoi(strings.TrimSpace(part.Instance)) // 0 where it does not say
			list[i].MemoryUsed, list[i].MemoryTotal = mebibytes(part.Used), mebibytes(part.Total)
		}
	}
	return list, nil
}

func listParts(names string, at uint64) (list []recording.GPUPart) {
	gpu, uuid := -1, ""
	for line := range strings.Lines(names) {
		if m := listedGPU.FindStringSubmatch(line); m != nil {
			gpu, _ = strconv.Atoi(m[1])
			uuid = m[2]
			continue
		}
		m := listedPart.FindStringSubmatch(line)
		if m == nil || gpu < 0 || gpu >= maxGPUs || len(list) == maxParts {
			continue
		}
		index, _ := strconv.Atoi(m[2])
		list = append(list, recording.GPUPart{
			TS: at, GPU: gpu, GPUUUID: uuid, Index: index, UUID: m[3], Profile: m[1],
		})
	}
	return list
}

// mebibytes reads a size like 298 MiB; 0 where it is not one.
func mebibytes(text string) uint64 {
	number, ok := strings.CutSuffix(strings.TrimSpace(text), " MiB")
	n, err := strconv.ParseUint(number, 10, 40)
	if !ok || err != nil {
		return 0
	}
	return n << 20
}

// Parts returns the parts of divided GPUs, as nvidia-smi said last.
func (s *Source) Parts() []recording.GPUPart {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.parts
}
