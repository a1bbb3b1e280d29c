package nvml

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/recording"
)

// Asking which processes use GPUs.
const (
	askPeriod    = 10 * time.Second
	askTimeout   = 5 * time.Second
	maxProcesses = 1024
)

// askProcesses asks nvidia-smi what each process holds, for the parts of divided GPUs and how GPUs are
// connected, until stop is closed.
func (s *Source) askProcesses(stop <-chan struct{}) {
	for {
		list, err := s.processesNow(stop)
		s.mu.Lock()
		s.processes, s.askErr = list, err
		s.mu.Unlock()
		s.askParts(stop)
		s.askTopology(stop)
		select {
		case <-stop:
			return
		case <-time.After(askPeriod):
		}
	}
}

func (s *Source) processesNow(stop <-chan struct{}) ([]recording.GPUProcess, error) {
	out, err := s.ask(stop, "--query-compute-apps=pid,gpu_uuid,used_gpu_memory", "--format=csv,noheader,nounits")
	if err != nil {
		return nil, err
	}
	return parseProcesses(out, clock.Monotonic())
}

// ask returns one answer of nvidia-smi; closing stop ends it.
func (s *Source) ask(stop <-chan struct{}, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	go func() {
		select {
		case <-stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	cmd := exec.CommandContext(ctx, s.program, args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", s.program, err)
	}
	return string(out), nil
}

// parseProcesses reads what nvidia-smi says at a time (ns). Processes whose memory the driver does not give, as under
// Windows, are left out.
func parseProcesses(text string, at uint64) ([]recording.GPUProcess, error) {
	var list []recording.GPUProcess
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.TrimSpace(line), ", ")
		if len(cells) != 3 || len(list) == maxProcesses {
			return nil, fmt.Errorf("nvidia-smi says %.200q of a process", line)
		}
		if strings.HasPrefix(cells[2], "[") {
			continue
		}
		pid, err := strconv.ParseUint(cells[0], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("nvidia-smi says %.200q of a process: %w", line, err)
		}
		mib, err := strconv.ParseUint(cells[2], 10, 40)
		if err != nil {
			return nil, fmt.Errorf("nvidia-smi says %.200q of a process: %w", line, err)
		}
		list = append(list, recording.GPUProcess{TS: at, PID: uint32(pid), UUID: clip(cells[1]), Used: mib << 20})
	}
	return list, nil
}

// Processes returns what each process held when it was asked for last.
func (s *Source) Processes() []recording.GPUProcess {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.processes
}
