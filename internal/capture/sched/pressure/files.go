package pressure

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/procfile"
)

const (
	maxFile   = 64 << 10 // of what is read whole
	firstRead = 4 << 10  // of it, at a time
	maxNUMA   = 8 << 20  // of a numa_maps
	maxDepth  = 32       // of cgroups above each other
	usec      = 1000     // ns
)

// files reads what the kernel shows under root.
type files struct{ root string }

// read returns the text of a file. os.Open would tell Go's poller of each, which cannot wait for any of
// them, with six system calls more a file and second.
func (f files) read(name string) (string, error) {
	fd, err := unix.Open(f.root+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open %s: %w", name, err)
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	text := make([]byte, 0, firstRead)
	for len(text) < maxFile {
		text = slices.Grow(text, firstRead)
		n, err := unix.Read(fd, text[len(text):min(cap(text), maxFile)])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("read %s: %w", name, err)
		}
		if n == 0 {
			break
		}
		text = text[:len(text)+n]
	}
	return string(text), nil
}

// majorFaults returns the major faults of the process that has the pid and started then
// (clock ticks); those of children that it has waited for are not among them.
func (f files) majorFaults(pid uint32, start uint64) (uint64, error) {
	text, err := f.read(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	faults, began, err := parseStat(text)
	if err == nil && began != start {
		err = fmt.Errorf("pid %d is another process by now", pid)
	}
	return faults, err
}

// freeCPU returns the time of the host's CPUs that nobody took so far, or only programs that give way to one of normal
// priority, in ns; 0 where that is not known, or where the process goes before programs of normal priority.
func (f files) freeCPU(pid uint32) uint64 {
	own, err := f.read(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	const niceField = 16 // after the comm
	fields := procfile.StatFields([]byte(own))
	if len(fields) <= niceField || fields[niceField][0] == '-' {
		return 0
	}
	host, err := f.read("/proc/stat")
	if err != nil {
		return 0
	}
	return parseFree(host)
}

// parseFree adds up columns 2, 4 and 5 of the first line of /proc/stat: nice, idle and iowait.
func parseFree(text string) (ns uint64) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 6 || fields[0] != "cpu" {
		return 0
	}
	for _, i := range []int{2, 4, 5} {
		ticks, err := strconv.ParseUint(fields[i], 10, 48)
		if err != nil {
			return 0
		}
		ns += ticks * nsPerTick
	}
	return ns
}

// nsPerTick is the unit of /proc/stat (USER_HZ).
const nsPerTick = 10_000_000

// parseStat returns fields 12 and 22 of /proc/PID/stat.
func parseStat(text string) (faults, start uint64, err error) {
	fields := procfile.StatFields([]byte(text))
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("stat with %d fields", len(fields))
	}
	if faults, err = strconv.ParseUint(string(fields[9]), 10, 64); err == nil {
		start, err = strconv.ParseUint(string(fields[19]), 10, 64)
	}
	return faults, start, err
}

// resident returns the resident memory of a process in bytes; 0 where it is not known.
func (f files) resident(pid uint32) uint64 {
	text, _ := f.read(fmt.Sprintf("/proc/%d/statm", pid))
	m, _ := procfile.ParseStatm([]byte(text))
	return uint64(m.Resident)
}

// numaPages adds the pages of a process to total, by node, in units of the base page.
func (f files) numaPages(pid uint32, total map[string]uint64) {
	file, err := os.Open(fmt.Sprintf("%s/proc/%d/numa_maps", f.root, pid))
	if err != nil {
		return
	}
	defer file.Close()
	sumPages(io.LimitReader(file, maxNUMA), uint64(os.Getpagesize()/1024), total)
}

// sumPages reads numa_maps: "7f.. default file=.. N0=12 N1=3 kernelpagesize_kB=4".
func sumPages(r io.Reader, baseKB uint64, total map[string]uint64) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		unit, counts := uint64(1), map[string]uint64{}
		for _, field := range strings.Fields(lines.Text()) {
			key, value, ok := strings.Cut(field, "=")
			n, err := strconv.ParseUint(value, 10, 48)
			if !ok || err != nil {
				continue
			}
			if key == "kernelpagesize_kB" && baseKB > 0 {
				unit = max(1, n/baseKB)
			} else if isNode(key) {
				counts[key[1:]] += n
			}
		}
		for node, n := range counts {
			total[node] += n * unit
		}
	}
}

func isNode(key string) bool {
	if len(key) < 2 || len(key) > 5 || key[0] != 'N' {
		return false
	}
	_, err := strconv.ParseUint(key[1:], 10, 16)
	return err == nil
}

// numaNodes returns how many NUMA nodes there are.
func (f files) numaNodes() int {
	nodes, _ := filepath.Glob(f.root + "/sys/devices/system/node/node[0-9]*")
	return len(nodes)
}

// gpuNode returns the NUMA node of the NVIDIA GPUs, or -1 where there is none, where
// they lie on several nodes, or where the firmware does not say.
func (f files) gpuNode() int {
	devices, _ := filepath.Glob(f.root + "/sys/bus/pci/devices/*")
	node := -1
	for _, d := range devices {
		d = strings.TrimPrefix(d, f.root)
		vendor, _ := f.read(d + "/vendor")
		class, _ := f.read(d + "/class")
		if strings.TrimSpace(vendor) != "0x10de" ||
			!strings.HasPrefix(class, "0x0302") && !strings.HasPrefix(class, "0x0300") {
			continue
		}
		text, _ := f.read(d + "/numa_node")
		at, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || at < 0 || node >= 0 && at != node {
			return -1
		}
		node = at
	}
	return node
}

// groups are the cgroup folders of a process, its own first and then those above, for
// each controller that matters. Quotas above take time as well.
type groups struct {
	unified []string
	cpu     []string // cgroup v1
}

// cgroups returns where the cgroups of a process are.
func (f files) cgroups(pid uint32) groups {
	membership, err := f.read(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return groups{}
	}
	mounts, err := f.read("/proc/self/mountinfo")
	if err != nil {
		return groups{}
	}
	var g groups
	at := parseMounts(mounts)
	for line := range strings.Lines(membership) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		switch {
		case parts[0] == "0" && parts[1] == "":
			g.unified = upwards(at["cgroup2"], parts[2])
		case has(parts[1], "cpu"):
			g.cpu = upwards(at["cpu"], parts[2])
		}
	}
	return g
}

func has(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}

// mount is where a hierarchy is mounted, and which part of it.
type mount struct{ point, root string }

// parseMounts returns the mounts of cgroup2 and of the cpu controller of cgroup v1, out
// of /proc/self/mountinfo (proc(5)).
func parseMounts(text string) map[string]mount {
	out := map[string]mount{}
	for line := range strings.Lines(text) {
		before, after, ok := strings.Cut(line, " - ")
		fields, super := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(super) < 3 {
			continue
		}
		m := mount{point: fields[4], root: fields[3]}
		if _, known := out["cgroup2"]; super[0] == "cgroup2" && !known {
			out["cgroup2"] = m
		}
		if _, known := out["cpu"]; super[0] == "cgroup" && has(super[2], "cpu") && !known {
			out["cpu"] = m
		}
	}
	return out
}

// upwards returns the folder of a cgroup and those above it up to the mount.
func upwards(m mount, group string) []string {
	if m.point == "" || strings.Contains(group, "..") {
		return nil // outside of this cgroup namespace
	}
	group = path.Clean("/" + group)
	if m.root != "/" {
		if group != m.root && !strings.HasPrefix(group, m.root+"/") {
			return nil
		}
		group = path.Clean("/" + strings.TrimPrefix(group, m.root))
	}
	var out []string
	for range maxDepth {
		out = append(out, path.Join(m.point, group))
		if group == "/" {
			break
		}
		group = path.Dir(group)
	}
	return out
}

// throttled returns for how long quotas of the groups kept CPUs from them so far, in ns
// summed over CPUs, and in how many periods.
func (f files) throttled(g groups) (ns, periods uint64) {
	for _, dir := range append(append([]string(nil), g.unified...), g.cpu...) {
		text, err := f.read(dir + "/cpu.stat")
		if err != nil {
			continue
		}
		for line := range strings.Lines(text) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			n, err := strconv.ParseUint(value, 10, 63)
			if err != nil {
				continue
			}
			switch key {
			case "throttled_usec": // v2
				ns += n * usec
			case "throttled_time": // v1
				ns += n
			case "nr_throttled":
				periods += n
			}
		}
	}
	return ns, periods
}

// memoryStall returns for how long some task of the group waited for memory so far, in
// ns, and of whom that is: of the host where the group has no figure.
func (f files) memoryStall(g groups) (ns uint64, whose string) {
	if len(g.unified) > 1 { // the root group has none of its own
		if text, err := f.read(g.unified[0] + "/memory.pressure"); err == nil {
			return parsePressure(text), "of the cgroup"
		}
	}
	if text, err := f.read("/proc/pressure/memory"); err == nil {
		return parsePressure(text), "of the host"
	}
	return 0, "not known (no PSI)"
}

// parsePressure returns the total of the line "some avg10=.. total=123" (µs) in ns.
func parsePressure(text string) uint64 {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "some" {
			continue
		}
		for _, field := range fields[1:] {
			if digits, ok := strings.CutPrefix(field, "total="); ok {
				n, _ := strconv.ParseUint(digits, 10, 53)
				return n * usec
			}
		}
	}
	return 0
}
