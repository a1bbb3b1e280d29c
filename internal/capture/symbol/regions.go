package symbol

import (
	"bufio"
	"cmp"
	"errors"
	"io"
	"slices"

	"github.com/inferscope/inferscope/internal/capture/procfile"
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

// parseRegion reads a line of an executable mapping.
func parseRegion(line []byte) (region, bool) {
	m, ok := procfile.ParseMapsLine(line)
	if !ok || m.Perms[2] != 'x' {
		return region{}, false
	}
	return region{m.Start, m.End, regionName(string(m.Name))}, true
}
