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
	maxRestart   = 10 * time.Minute
	nvlinkPeriod = 10 * time.Second // each starts a process
	nvlinkAge    = 30_000_000_000   // ns
	nvlinkTries  = 3                // that may fail one after another
	maxLinks     = 4096             // lines of one answer
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

// trafficOf returns the place of a GPU's traffic; the caller holds mu.
func (s *Source) trafficOf(gpu int) *traffic {
	t := s.links[gpu]
	if t == nil {
		t = &traffic{}
		s.links[gpu] = t
	}
	return t
}

// watchPCIe lets nvidia-smi read the traffic of PCIe until stop is closed, again and again where it ends by itself. The
// pauses grow where it ends without a reading.
func (s *Source) watchPCIe(stop <-chan struct{}) {
	var pause time.Duration
	for {
		err := s.stream(stop, s.readPCIe, "dmon", "-s", "t", "-d", strconv.Itoa(pcieSeconds))
		select {
		case <-stop:
			return
		default:
		}
		s.mu.Lock()
		pause = nextPause(pause, s.linkErr == nil)
		s.linkErr = err
		s.mu.Unlock()
		select {
		case <-stop:
			return
		case <-time.After(pause):
		}
	}
}

// nextPause returns the pause before nvidia-smi dmon is started again, where the last pause was this one; worked says
// whether it gave a reading since.
func nextPause(last time.Duration, worked bool) time.Duration {
	if worked {
		return restart
	}
	return min(max(2*last, restart), maxRestart)
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

// linkCounter is one counter of NVLink.
type linkCounter struct {
	gpu, link int
	rx        bool // of bytes received, not sent
}

// watchNVLink asks nvidia-smi for the counters of NVLink until stop is closed, until it turns out that no GPU has any,
// or until nvidia-smi has failed nvlinkTries times one after another.
func (s *Source) watchNVLink(stop <-chan struct{}) {
	var before map[linkCounter]uint64
	var at uint64
	failed := 0
	for {
		now, then, err := s.countNVLink(stop)
		select {
		case <-stop:
			return
		default:
		}
		switch {
		case err != nil:
			if failed++; failed == nvlinkTries {
				s.mu.Lock()
				s.nvlinkErr = err
				s.mu.Unlock()
				return
			}
		case len(now) == 0 && len(before) == 0:
			return
		default:
			s.keepNVLink(before, now, at, then)
			before, at, failed = now, then, 0
		}
		select {
		case <-stop:
			return
		case <-time.After(s.nvlinkPeriod):
		}
	}
}

// keepNVLink keeps what the links of each GPU carried between two moments (ns). Only counters that are in both answers
// count, and none that went down, as with a reset of the GPU.
func (s *Source) keepNVLink(before, now map[linkCounter]uint64, from, to uint64) {
	if to <= from {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	seconds, rx, tx := float64(to-from)/1e9, map[int]uint64{}, map[int]uint64{}
	for c, n := range now {
		b, ok := before[c]
		if !ok || n < b {
			continue
		}
		s.trafficOf(c.gpu).nvlinkAt = to
		if c.rx {
			rx[c.gpu] += n - b
		} else {
			tx[c.gpu] += n - b
		}
	}
	for gpu, t := range s.links {
		if t.nvlinkAt == to {
			t.nvlinkRx, t.nvlinkTx = uint64(float64(rx[gpu])/seconds), uint64(float64(tx[gpu])/seconds)
		}
	}
}

// countNVLink returns the counters (bytes), and when they were read (ns).
func (s *Source) countNVLink(stop <-chan struct{}) (map[linkCounter]uint64, uint64, error) {
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
	nvlinkCounter = regexp.MustCompile(`^\s*Link (\d{1,2}): Data (Tx|Rx): (\d{1,16}) KiB\s*$`)
)

// parseNVLink returns the counters in bytes; links that count nothing are left out.
func parseNVLink(text string) (map[linkCounter]uint64, error) {
	out, gpu, n := map[linkCounter]uint64{}, -1, 0
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
		kib, err := strconv.ParseUint(m[3], 10, 53)
		if err != nil {
			return nil, fmt.Errorf("nvidia-smi nvlink says %.200q: %w", line, err)
		}
		link, _ := strconv.Atoi(m[1])
		out[linkCounter{gpu, link, m[2] == "Rx"}] = kib << 10
	}
	return out, nil
}

// forgetLinks drops what is known of links; the caller holds mu.
func (s *Source) forgetLinks() {
	s.links, s.linkErr, s.nvlinkErr = map[int]*traffic{}, nil, nil
}

// kill ends processes of nvidia-smi; they may have ended.
func kill(list []*exec.Cmd) {
	for _, cmd := range list {
		_ = cmd.Process.Kill()
	}
}
