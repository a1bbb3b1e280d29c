package proc

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

const (
	onlineCPUs = "/sys/devices/system/cpu/online"
	maxCPU     = 8191 // NR_CPUS is at most 8,192 on x86-64
)

// readCPUs returns the CPUs that a list such as "0-3,8" names.
func readCPUs(path string) ([]int, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return nil, err
	}
	return parseCPUs(strings.TrimSpace(string(text)))
}

func parseCPUs(list string) ([]int, error) {
	var cpus []int
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("list of CPUs %q: %w", list, err)
		}
		to, err := strconv.ParseUint(last, 10, 16)
		if err != nil || to > maxCPU || from > to {
			return nil, fmt.Errorf("list of CPUs %q: bad range %q", list, part)
		}
		for cpu := from; cpu <= to; cpu++ {
			cpus = append(cpus, int(cpu))
		}
		if len(cpus) > maxCPU+1 {
			return nil, fmt.Errorf("list of CPUs: names more than %d", maxCPU+1)
		}
	}
	return cpus, nil
}
