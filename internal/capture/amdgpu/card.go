package amdgpu

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/inferscope/inferscope/internal/recording"
)

// vendor is AMD's number in /sys/class/drm/card*/device/vendor.
const vendor = "0x1002"

// Bounds.
const (
	maxCards = 64
	maxFile  = 4096 // what sysfs gives of one file
)

var cardName = regexp.MustCompile(`^card\d{1,3}$`)

// card is one AMD GPU. The files are those of Documentation/gpu/amdgpu/thermal.rst and driver-misc.rst of the kernel.
type card struct {
	index  int
	device string // /sys/class/drm/cardN/device
	hwmon  string // "": there is none
	uuid   string
	name   string

	throttled *residencies // as they were read last
}

// cards returns the AMD GPUs below a folder like /sys/class/drm, by the number of the card.
func cards(root string) []card {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil // without the folder there are none
	}
	var numbers []int
	for _, e := range entries {
		if !cardName.MatchString(e.Name()) || text(filepath.Join(root, e.Name(), "device/vendor")) != vendor {
			continue
		}
		n, _ := strconv.Atoi(strings.TrimPrefix(e.Name(), "card"))
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	var list []card
	for i, n := range numbers[:min(len(numbers), maxCards)] {
		c := card{index: i, device: filepath.Join(root, fmt.Sprintf("card%d", n), "device")}
		if found, _ := filepath.Glob(filepath.Join(c.device, "hwmon/hwmon*")); len(found) > 0 {
			c.hwmon = found[0]
		}
		if c.name = text(filepath.Join(c.device, "product_name")); c.name == "" {
			c.name = "AMD GPU " + text(filepath.Join(c.device, "device"))
		}
		if id := text(filepath.Join(c.device, "unique_id")); id != "" {
			c.uuid = "GPU-" + id // as HIP and rocm-smi write it
		} else if bus, err := filepath.EvalSymlinks(c.device); err == nil {
			c.uuid = filepath.Base(bus)
		}
		list = append(list, c)
	}
	return list
}

// read returns what the sensors say now; an error where the load is not known, which a
// sample would show as 0%.
func (c *card) read(at uint64) (recording.Sensor, error) {
	s := recording.Sensor{TS: at, GPU: c.index, UUID: c.uuid, Name: c.name}
	load, known := c.number("gpu_busy_percent")
	if !known {
		return s, fmt.Errorf("the kernel does not say the load of AMD GPU %d", c.index)
	}
	s.Utilization = int(min(load, 100))
	memory, _ := c.number("mem_busy_percent")
	s.MemoryUtilization = int(min(memory, 100))
	s.MemoryUsed, _ = c.number("mem_info_vram_used")
	s.MemoryTotal, _ = c.number("mem_info_vram_total")
	s.SMClockMax = highest(text(filepath.Join(c.device, "pp_dpm_sclk")))
	s.Uncorrected = uncorrected(text(filepath.Join(c.device, "ras/umc_err_count")))
	if c.hwmon != "" {
		power, ok := c.hwmonNumber("power1_average") // over a while; newer GPUs have power1_input, of now
		if !ok {
			power, _ = c.hwmonNumber("power1_input")
		}
		s.Power = power / 1000 // hwmon: microwatts
		limit, _ := c.hwmonNumber("power1_cap")
		s.PowerLimit = limit / 1000
		heat, ok := c.hwmonNumber("temp1_input") // of the edge; GPUs without that sensor have the hottest spot's
		if !ok {
			heat, _ = c.hwmonNumber("temp2_input")
		}
		s.Temperature = int(min(heat, 1_000_000)+500) / 1000 // hwmon: a thousandth of a degree Celsius
		clock, _ := c.hwmonNumber("freq1_input")
		s.SMClock = (clock + 500_000) / 1_000_000 // hwmon: Hz
		clock, _ = c.hwmonNumber("freq2_input")
		s.MemoryClock = (clock + 500_000) / 1_000_000
	}
	if metrics, err := readFile(filepath.Join(c.device, "gpu_metrics")); err == nil {
		s.Reasons, _ = c.reasons(metrics) // 0 where the format is another
	}
	return s, nil
}

func (c *card) number(name string) (uint64, bool) { return number(filepath.Join(c.device, name)) }

func (c *card) hwmonNumber(name string) (uint64, bool) { return number(filepath.Join(c.hwmon, name)) }

func number(path string) (uint64, bool) {
	n, err := strconv.ParseUint(text(path), 10, 62)
	return n, err == nil
}

// text returns the first characters of a file without spaces around them; "" where it cannot be read.
func text(path string) string {
	b, err := readFile(path)
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the file
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile)) //nolint:wrapcheck // likewise
}

// dpmLevel is a line of pp_dpm_sclk: "2: 2100Mhz *".
var dpmLevel = regexp.MustCompile(`(?m)^\s*\w+: (\d{1,6})Mhz`)

// highest returns the highest clock of a list of levels, MHz; 0 where there is none.
func highest(levels string) (mhz uint64) {
	for _, m := range dpmLevel.FindAllStringSubmatch(levels, -1) {
		n, _ := strconv.ParseUint(m[1], 10, 32)
		mhz = max(mhz, n)
	}
	return mhz
}

// uncorrected reads ras/umc_err_count: "ue: 1" and "ce: 0" in lines of their own.
func uncorrected(counts string) uint64 {
	for line := range strings.Lines(counts) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "ue:"); ok {
			v, _ := strconv.ParseUint(strings.TrimSpace(n), 10, 62)
			return v
		}
	}
	return 0
}

// pcie reads pcie_bw: packets received and sent in a second, and the most that a packet holds, bytes. The kernel waits
// for that second while the file is read. The result is an upper bound: packets can be smaller.
func (c *card) pcie() (rx, tx uint64, ok bool) {
	fields := strings.Fields(text(filepath.Join(c.device, "pcie_bw")))
	if len(fields) != 3 {
		return 0, 0, false
	}
	var n [3]uint64
	for i, f := range fields {
		v, err := strconv.ParseUint(f, 10, 40)
		if err != nil {
			return 0, 0, false
		}
		n[i] = v
	}
	if n[2] == 0 || n[2] > 4096 { // PCIe allows no larger ones
		return 0, 0, false
	}
	return n[0] * n[2], n[1] * n[2], true
}
