package nvml

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/inferscope/inferscope/internal/recording"
)

// topologyTries is how often nvidia-smi is asked how GPUs are connected where it fails.
const topologyTries = 3

// askTopology asks once how GPUs are connected, where the machine has several.
func (s *Source) askTopology(stop <-chan struct{}) {
	s.mu.Lock()
	done := s.topology != nil || s.topologyTried == topologyTries
	if !done {
		s.topologyTried++
	}
	s.mu.Unlock()
	if done {
		return
	}
	list, err := s.topologyNow(stop)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.topology, s.topologyErr = list, err
}

func (s *Source) topologyNow(stop <-chan struct{}) ([]recording.GPULink, error) {
	names, err := s.ask(stop, "-L")
	if err != nil {
		return nil, err
	}
	if strings.Count(names, "\nGPU ") == 0 { // the first one begins the text
		return []recording.GPULink{}, nil
	}
	matrix, err := s.ask(stop, "topo", "-m")
	if err != nil {
		return nil, err
	}
	return parseTopology(names, matrix)
}

var (
	underline  = regexp.MustCompile("\x1b\\[[0-9;]*m")
	matrixGPU  = regexp.MustCompile(`^GPU(\d{1,2})$`)
	connection = regexp.MustCompile(`^(NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|C2C)$`)
)

// parseTopology joins the list of GPUs (nvidia-smi -L) with the matrix of nvidia-smi topo -m. The first line names
// columns: GPU0, GPU1, NIC0, CPU Affinity, ...
func parseTopology(names, matrix string) ([]recording.GPULink, error) {
	uuids := map[int]string{}
	for line := range strings.Lines(names) {
		if m := listedGPU.FindStringSubmatch(line); m != nil {
			gpu, _ := strconv.Atoi(m[1])
			uuids[gpu] = m[2]
		}
	}
	out := []recording.GPULink{}
	var columns []string
	for line := range strings.Lines(underline.ReplaceAllString(matrix, "")) {
		cells := strings.Split(strings.TrimRight(line, "\r\n"), "\t")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if columns == nil {
			columns = cells
			continue
		}
		from := matrixGPU.FindStringSubmatch(cells[0])
		if from == nil {
			continue
		}
		a, _ := strconv.Atoi(from[1])
		for i := 1; i < min(len(cells), len(columns)); i++ {
			to := matrixGPU.FindStringSubmatch(columns[i])
			if to == nil {
				continue
			}
			b, _ := strconv.Atoi(to[1])
			if b <= a {
				continue
			}
			if !connection.MatchString(cells[i]) || uuids[a] == "" || uuids[b] == "" || a >= maxGPUs || b >= maxGPUs {
				return nil, fmt.Errorf("nvidia-smi topo says %.20q of GPU %d and GPU %d", cells[i], a, b)
			}
			out = append(out, recording.GPULink{A: uuids[a], B: uuids[b], Kind: cells[i]})
		}
	}
	if n := len(uuids); len(out) < n*(n-1)/2 {
		return nil, fmt.Errorf("nvidia-smi topo says of %d pairs of %d GPUs how they are connected", len(out), n)
	}
	return out, nil
}

// GPULinks returns how the GPUs of the machine are connected.
func (s *Source) GPULinks() []recording.GPULink {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.topology
}
