package pressure

import (
	"path/filepath"
	"strconv"
	"strings"
)

// maxCPUs bounds the table of CPUs; the kernel's own bound is 8,192.
const maxCPUs = 1 << 14

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
		for _, cpu := range parseList(list) {
			for len(table) <= cpu {
				table = append(table, -1)
			}
			table[cpu] = node
		}
	}
	return table
}

// parseList returns the numbers of a list as the kernel writes it: "0-3,8,10-11".
func parseList(text string) []int {
	var out []int
	for part := range strings.SplitSeq(strings.TrimSpace(text), ",") {
		first, last, ranged := strings.Cut(part, "-")
		a, err := strconv.Atoi(first)
		b := a
		if err == nil && ranged {
			b, err = strconv.Atoi(last)
		}
		if err != nil || a < 0 || b >= maxCPUs {
			continue
		}
		for ; a <= b; a++ {
			out = append(out, a)
		}
	}
	return out
}
