package symbol

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"io"
	"slices"
	"strconv"
)

// Limits on /proc/PID/maps. A PyTorch 2.15 process that ran a few layers on the CPU had
// 548 lines.
const (
	maxMaps    = 64 << 20 // bytes
	maxRegions = 1 << 14
	maxLine    = 8 << 10 // bytes: the kernel's 4,096 of a path, octal escapes, and the rest
)

var errManyRegions = errors.New("more executable mappings than are kept")

// readRegions reads the executable mappings out of /proc/PID/maps, ordered by address.
// Those of files are kept too: a deleted or unreadable file's code is in memory only.
func readRegions(r io.Reader) ([]region, error) {
	lines := bufio.NewScanner(io.LimitReader(r, maxMaps))
	lines.Buffer(make([]byte, 0, 4096), maxLine)
	var out []region
	for lines.Scan() {
		g, ok := parseRegion(lines.Bytes())
		if !ok {
			continue
		}
		if len(out) == maxRegions {
			return nil, errManyRegions
		}
		out = append(out, g)
	}
	// The kernel sorts them, but nothing here relies on it.
	slices.SortFunc(out, func(a, b region) int { return cmp.Compare(a.start, b.start) })
	return out, lines.Err()
}

// parseRegion reads "7f0000-7f1000 r-xp 00000000 00:00 0   name".
func parseRegion(line []byte) (region, bool) {
	fields := bytes.SplitN(line, []byte(" "), 6)
	if len(fields) < 5 || len(fields[1]) < 4 || fields[1][2] != 'x' {
		return region{}, false
	}
	from, to, ok := bytes.Cut(fields[0], []byte("-"))
	if !ok {
		return region{}, false
	}
	start, err1 := strconv.ParseUint(string(from), 16, 64)
	end, err2 := strconv.ParseUint(string(to), 16, 64)
	if err1 != nil || err2 != nil || start >= end {
		return region{}, false
	}
	name := ""
	if len(fields) == 6 {
		name = string(bytes.TrimLeft(fields[5], " "))
	}
	return region{start, end, regionName(name)}, true
}
