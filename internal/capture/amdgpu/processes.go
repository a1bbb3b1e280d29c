package amdgpu

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/recording"
)

// computeFolder is where the kernel's compute driver lists GPUs and the processes that use them (kfd_topology.c and
// kfd_process.c).
const computeFolder = "/sys/class/kfd/kfd"

const (
	processPeriod = 10 * time.Second
	maxProcesses  = 1024
)

// watchProcesses reads what each process holds until stop is closed.
func (s *Source) watchProcesses(stop <-chan struct{}) {
	next := time.NewTicker(processPeriod)
	defer next.Stop()
	for {
		list := processes(s.compute, clock.Monotonic())
		s.mu.Lock()
		s.processes = list
		s.mu.Unlock()
		select {
		case <-stop:
			return
		case <-next.C:
		}
	}
}

// processes returns what each process holds of each GPU's memory: of all its partitions together.
func processes(folder string, at uint64) []recording.GPUProcess {
	uuids := gpuUUIDs(folder)
	var list []recording.GPUProcess
	files, _ := filepath.Glob(filepath.Join(folder, "proc/*/vram_*"))
	for _, path := range files {
		_, gpu, _ := strings.Cut(filepath.Base(path), "_")
		pid, err := strconv.ParseUint(filepath.Base(filepath.Dir(path)), 10, 32)
		held, known := number(path)
		if err != nil || !known || held == 0 || uuids[gpu] == "" {
			continue
		}
		p := recording.GPUProcess{TS: at, PID: uint32(pid), UUID: uuids[gpu], Used: held}
		same := func(q recording.GPUProcess) bool { return q.PID == p.PID && q.UUID == p.UUID }
		if i := slices.IndexFunc(list, same); i >= 0 {
			list[i].Used += held
		} else if len(list) < maxProcesses {
			list = append(list, p)
		}
	}
	return list
}

// gpuUUIDs returns the UUIDs of GPUs by the number that the compute driver gives them.
func gpuUUIDs(folder string) map[string]string {
	uuids := map[string]string{}
	files, _ := filepath.Glob(filepath.Join(folder, "topology/nodes/*/gpu_id"))
	for _, path := range files {
		for line := range strings.Lines(text(filepath.Join(filepath.Dir(path), "properties"))) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			if id, err := strconv.ParseUint(value, 10, 64); name == "unique_id" && err == nil && id != 0 {
				uuids[text(path)] = fmt.Sprintf("GPU-%016x", id)
			}
		}
	}
	return uuids
}

// Processes returns what each process held of the GPUs' memory when it was read last.
func (s *Source) Processes() []recording.GPUProcess {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.processes
}

// Parts returns nothing: parts of AMD's GPUs are not told apart.
func (s *Source) Parts() []recording.GPUPart { return nil }

// Xids returns nothing: they are NVIDIA's.
func (s *Source) Xids(_, _ uint64) []recording.Xid { return nil }

// XidCounts returns nothing, likewise.
func (s *Source) XidCounts() []recording.XidCount { return nil }
