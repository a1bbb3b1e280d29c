package nvml

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/inferscope/inferscope/internal/recording"
)

// answer is one line of nvidia-smi --query-gpu.
type answer struct {
	recording.Sensor
	bus string // domain, bus and device, e.g. 0000:65:00
}

// field is one column of it.
type field struct {
	name string
	put  func(s *answer, text string) error
}

// fieldLists are the columns to ask for, in the order in which they are tried: those of driver 535 and later, those
// before, and those of drivers that cannot divide a GPU.
func fieldLists() [][]field {
	older := fields("clocks_throttle_reasons.active", "power.draw")
	return [][]field{newFields(), append(slices.Clone(older), divided()), older}
}

func newFields() []field {
	return append(fields("clocks_event_reasons.active", "power.draw.instant"), divided())
}

func divided() field {
	return field{"mig.mode.current", func(s *answer, text string) error { s.MIG = text == "Enabled"; return nil }}
}

func fields(reasons, power string) []field {
	return []field{
		{"index", func(s *answer, text string) error {
			n, err := strconv.ParseUint(text, 10, 8)
			if err == nil && n >= maxGPUs {
				err = fmt.Errorf("GPU %d of at most %d", n, maxGPUs)
			}
			s.GPU = int(n)
			return err
		}},
		{"uuid", func(s *answer, text string) error { s.UUID = clip(text); return nil }},
		{"name", func(s *answer, text string) error { s.Name = clip(text); return nil }},
		{power, scaled(1000, func(s *answer, n uint64) { s.Power = n })},
		{"power.limit", scaled(1000, func(s *answer, n uint64) { s.PowerLimit = n })},
		{"temperature.gpu", scaled(1, func(s *answer, n uint64) { s.Temperature = int(min(n, 1000)) })},
		{"clocks.sm", scaled(1, func(s *answer, n uint64) { s.SMClock = n })},
		{"clocks.max.sm", scaled(1, func(s *answer, n uint64) { s.SMClockMax = n })},
		{"clocks.mem", scaled(1, func(s *answer, n uint64) { s.MemoryClock = n })},
		{reasons, func(s *answer, text string) error {
			n, err := strconv.ParseUint(strings.TrimPrefix(text, "0x"), 16, 64)
			s.Reasons = n
			return err
		}},
		{"utilization.gpu", scaled(1, func(s *answer, n uint64) { s.Utilization = int(min(n, 100)) })},
		{
			"utilization.memory",
			scaled(1, func(s *answer, n uint64) { s.MemoryUtilization = int(min(n, 100)) }),
		},
		{"memory.used", scaled(1<<20, func(s *answer, n uint64) { s.MemoryUsed = n })},
		{"memory.total", scaled(1<<20, func(s *answer, n uint64) { s.MemoryTotal = n })},
		{"ecc.errors.uncorrected.volatile.total", scaled(1, func(s *answer, n uint64) { s.Uncorrected = n })},
		{"pci.bus_id", func(s *answer, text string) error { s.bus = busOf(text); return nil }},
	}
}

// scaled reads a number in units of scale.
func scaled(scale float64, put func(*answer, uint64)) func(*answer, string) error {
	return func(s *answer, text string) error {
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return err //nolint:wrapcheck // parse names the field
		}
		if math.IsNaN(f) || f < 0 || f*scale > 1<<62 {
			return fmt.Errorf("%s is out of range", text)
		}
		put(s, uint64(math.Round(f*scale)))
		return nil
	}
}

// busOf shortens a bus id, 00000000:65:00.0, to how the kernel's log names the device, 0000:65:00.
func busOf(id string) string {
	id, _, _ = strings.Cut(strings.ToLower(clip(id)), ".")
	if domain, device, ok := strings.Cut(id, ":"); ok && len(domain) == 8 {
		return domain[4:] + ":" + device
	}
	return id
}

func clip(s string) string { return s[:min(len(s), 64)] }

func names(fields []field) string {
	all := make([]string, len(fields))
	for i, f := range fields {
		all[i] = f.name
	}
	return strings.Join(all, ",")
}

// parse reads one line. What the driver does not give stands in brackets: [N/A], [Not Supported].
func parse(line string, fields []field) (answer, error) {
	var s answer
	cells := strings.Split(line, ",")
	if len(cells) != len(fields) {
		return s, fmt.Errorf("nvidia-smi says %.200q instead of %d values", line, len(fields))
	}
	for i, cell := range cells {
		text := strings.TrimSpace(cell)
		if strings.HasPrefix(text, "[") || text == "N/A" {
			continue
		}
		if err := fields[i].put(&s, text); err != nil {
			return s, fmt.Errorf("nvidia-smi says %.64q for %s: %w", text, fields[i].name, err)
		}
	}
	return s, nil
}
