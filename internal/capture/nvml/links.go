package nvml

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/recording"
)

// Reading what PCIe and NVLink carry. NVML counts PCIe for 20 ms during each call, so a process of its own waits for
// it; NVLink has counters that only grow.
const (
	pcieSeconds  = 1
	pcieAge      = 3_000_000_000 // ns in which a reading of PCIe counts
	nvlinkPeriod = 5 * time.Second
	nvlinkAge    = 15_000_000_000 // ns
	maxLinks     = 4096           // lines of one answer
)

// traffic is what the links of one GPU carried last, bytes a second.
type traffic struct {
	pcieRx, pcieTx     uint64
	nvlinkRx, nvlinkTx uint64
	pcieAt, nvlinkAt   uint64 // ns; 0: never read
}

// add puts what is recent enough into a sample.
func (t *traffic) add(s *recording.Sensor) {
	if t.pcieAt != 0 && s.TS <= t.pcieAt+pcieAge {
		s.Links |= recording.PCIeLink
		s.PCIeRx, s.PCIeTx = t.pcieRx, t.pcieTx
	}
	if t.nvlinkAt != 0 && s.TS <= t.nvlinkAt+nvlinkAge {
		s.Links |= recording.NVLink
		s.NVLinkRx, s.NVLinkTx = t.nvlinkRx, t.nvlinkTx
	}
}

// traffic returns the place of a GPU's traffic; the caller holds mu.
func (s *Source) trafficOf(gpu int) *traffic {
	t := s.links[gpu]
	if t == nil {
		t = &traffic{}
		s.links[gpu] = t
	}
	return t
}

// watchPCIe lets nvidia-smi read the traffic of PCIe until stop is closed, again and again where it ends by itself.
func (s *Source) watchPCIe(stop chan struct{}) {
	for {
		err := s.stream(stop, s.readPCIe, "dmon", "-s", "t", "-d", strconv.Itoa(pcieSeconds))
		select {
		case <-stop:
			return
		default:
		}
		s.mu.Lock()
		s.linkErr = err
		s.mu.Unlock()
		select {
		case <-stop:
			return
		case <-time.After(restart):
		}
	}
}

// readPCIe reads the lines of nvidia-smi dmon. Lines that begin with # name the columns and their units, again and
// again; "-" stands for what a GPU does not tell.
func (s *Source) readPCIe(r io.Reader, began func()) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, maxLine), maxLine)
	var columns dmonColumns
	for lines.Scan() {
		line := lines.Text()
		if names, ok := strings.CutPrefix(strings.TrimSpace(line), "#"); ok {
			columns.name(strings.Fields(names))
			continue
		}
		gpu, rx, tx, ok, err := columns.parse(strings.Fields(line))
		if err != nil {
			return fmt.Errorf("nvidia-smi dmon says %.200q: %w", line, err)
		}
		began()
		if !ok {
			continue
		}
		s.mu.Lock()
		t := s.trafficOf(gpu)
		t.pcieRx, t.pcieTx, t.pcieAt = rx, tx, clock.Monotonic()
		s.linkErr = nil
		s.mu.Unlock()
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read what nvidia-smi dmon says: %w", err)
	}
	return nil
}

// dmonColumns are the places of the columns that are read, from 1; 0: there is none.
type dmonColumns struct{ gpu, rx, tx int }

// name takes a heading. The second heading holds units, which are MB/s in all versions.
func (c *dmonColumns) name(names []string) {
	if len(names) == 0 || names[0] != "gpu" {
		return
	}
	*c = dmonColumns{}
	for i, name := range names {
		switch name {
		case "gpu":
			c.gpu = i + 1
		case "rxpci":
			c.rx = i + 1
		case "txpci":
			c.tx = i + 1
		}
	}
}

// parse reads a line of values, bytes a second; ok is false for a GPU that does not tell.
func (c *dmonColumns) parse(cells []string) (gpu int, rx, tx uint64, ok bool, err error) {
	if c.gpu == 0 || c.rx == 0 || c.tx == 0 {
		return 0, 0, 0, false, errors.New("no heading names gpu, rxpci and txpci")
	}
	if len(cells) < max(c.gpu, c.rx, c.tx) {
		return 0, 0, 0, false, errors.New("columns are missing")
	}
	gpu, err = strconv.Atoi(cells[c.gpu-1])
	if err != nil || gpu < 0 || gpu >= maxGPUs {
		return 0, 0, 0, false, errors.New("that is no GPU")
	}
	for _, v := range []struct {
		cell string
		to   *uint64
	}{{cells[c.rx-1], &rx}, {cells[c.tx-1], &tx}} {
		if v.cell == "-" {
			return gpu, 0, 0, false, nil
		}
		mb, err := strconv.ParseUint(v.cell, 10, 40)
		if err != nil {
			return 0, 0, 0, false, err //nolint:wrapcheck // the caller names the line
		}
		*v.to = mb * 1_000_000
	}
	return gpu, rx, tx, true, nil
}

// counted is how much the NVLinks of a GPU have carried, bytes.
type counted struct{ rx, tx uint64 }

// watchNVLink asks nvidia-smi for the counters of NVLink until stop is closed, or until it turns out that no GPU has
// any.
func (s *Source) watchNVLink(stop chan struct{}) {
	before, at, err := s.countNVLink(stop)
	for err != nil || len(before) > 0 {
		select {
		case <-stop:
			return
		case <-time.After(nvlinkPeriod):
		}
		var now map[int]counted
		var then uint64
		if now, then, err = s.countNVLink(stop); err != nil {
			continue
		}
		s.mu.Lock()
		for gpu, n := range now {
			if b, ok := before[gpu]; ok && then > at && n.rx >= b.rx && n.tx >= b.tx {
				t, seconds := s.trafficOf(gpu), float64(then-at)/1e9
				t.nvlinkRx, t.nvlinkTx = uint64(float64(n.rx-b.rx)/seconds), uint64(float64(n.tx-b.tx)/seconds)
				t.nvlinkAt = then
			}
		}
		s.mu.Unlock()
		before, at = now, then
	}
}

// countNVLink returns the counters by GPU, and when they were read (ns).
func (s *Source) countNVLink(stop chan struct{}) (map[int]counted, uint64, error) {
	out, err := s.ask(stop, "nvlink", "-gt", "d")
	if err != nil {
		return nil, 0, err
	}
	at := clock.Monotonic()
	list, err := parseNVLink(out)
	return list, at, err
}

// nvlinkGPU and nvlinkCounter are lines of nvidia-smi nvlink -gt d:
// GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0a1b)
// Link 0: Data Tx: 1024 KiB
// A GPU that does not count says N/A.
var (
	nvlinkGPU     = regexp.MustCompile(`^GPU (\d{1,2}):`)
	nvlinkCounter = regexp.MustCompile(`^\s*Link \d{1,2}: Data (Tx|Rx): (\d{1,16}) KiB\s*$`)
)

// parseNVLink adds up the links of each GPU; GPUs that count nothing are left out.
func parseNVLink(text string) (map[int]counted, error) {
	out, gpu, n := map[int]counted{}, -1, 0
	for line := range strings.Lines(text) {
		if n++; n > maxLinks {
			return nil, errors.New("nvidia-smi nvlink says too much")
		}
		line = strings.TrimRight(line, "\r\n")
		if m := nvlinkGPU.FindStringSubmatch(line); m != nil {
			gpu, _ = strconv.Atoi(m[1])
			continue
		}
		m := nvlinkCounter.FindStringSubmatch(line)
		if m == nil || gpu < 0 || gpu >= maxGPUs {
			continue
		}
		kib, err := strconv.ParseUint(m[2], 10, 53)
		if err != nil {
			return nil, fmt.Errorf("nvidia-smi nvlink says %.200q: %w", line, err)
		}
		c := out[gpu]
		if m[1] == "Rx" {
			c.rx += kib << 10
		} else {
			c.tx += kib << 10
		}
		out[gpu] = c
	}
	return out, nil
}

// forget drops what is known of links; the caller holds mu.
func (s *Source) forgetLinks() { s.links, s.linkErr = map[int]*traffic{}, nil }

// kill ends processes of nvidia-smi; they may have ended.
func kill(list []*exec.Cmd) {
	for _, cmd := range list {
		_ = cmd.Process.Kill()
	}
}
