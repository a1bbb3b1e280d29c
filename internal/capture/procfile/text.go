package procfile

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// OnlineCPUs is the file that lists the CPUs that run.
const OnlineCPUs = "/sys/devices/system/cpu/online"

const (
	maxCPU     = 8191 // NR_CPUS is at most 8,192 on x86-64
	maxCPUList = 64 << 10
)

// CPUs returns the CPUs that a file of the kernel's lists.
func CPUs(path string) ([]int, error) {
	text, err := Head(path, maxCPUList)
	if err != nil {
		return nil, fmt.Errorf("list the CPUs: %w", err)
	}
	return ParseCPUs(string(text))
}

// ParseCPUs returns the CPUs that a list such as "0-3,8" names.
func ParseCPUs(list string) ([]int, error) {
	list = strings.TrimSpace(list)
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

// StatFields returns the fields of /proc/PID/stat (proc(5)) from the third one, the state, on: the comm before them
// may hold any byte.
func StatFields(text []byte) [][]byte {
	return bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
}
