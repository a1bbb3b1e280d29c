package nvml

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/recording"
)

// maxXids bounds the errors that are kept; maxRecord is the longest record of the kernel's log
// (PRINTK_MESSAGE_MAX, kernel/printk/internal.h).
const (
	maxXids      = 256
	maxXidCounts = 256
	maxRecord    = 2048
)

// xidLine is what the driver writes into the kernel's log, e.g.
// NVRM: Xid (PCI:0000:65:00): 31, pid=1234, name=python3, Ch 00000010, intr 00000000. MMU Fault: ...
// Of a MIG part: (PCI:0000:65:00 GPU-I:05).
var xidLine = regexp.MustCompile(`NVRM: Xid \(PCI:([0-9a-fA-F:.]{1,32})[^)]{0,64}\): (\d{1,5})(?:, pid='?(\d{1,10}))?(.*)`)

// parseXid reads a record of the kernel's log; false: it tells of no error of a GPU.
func parseXid(record string) (recording.Xid, bool) {
	m := xidLine.FindStringSubmatch(record)
	if m == nil {
		return recording.Xid{}, false
	}
	code, _ := strconv.Atoi(m[2])
	pid, _ := strconv.ParseUint(m[3], 10, 32) // 0 where there is none
	text := strings.TrimLeft(m[4], "', ")
	return recording.Xid{
		GPU: -1, Bus: strings.ToLower(m[1]), Code: code, PID: uint32(pid), Text: text[:min(len(text), 200)],
	}, true
}

// readLog reads the kernel's log from now on, until stop is closed.
func (s *Source) readLog(stop <-chan struct{}) {
	err := s.followLog(stop)
	select {
	case <-stop:
		return
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logErr = err
}

func (s *Source) followLog(stop <-chan struct{}) error {
	f, err := os.OpenFile(s.kernelLog, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err //nolint:wrapcheck // it names the file
	}
	defer f.Close()
	if _, err := f.Seek(0, io.SeekEnd); err != nil && !errors.Is(err, syscall.ESPIPE) {
		return fmt.Errorf("go to the end of %s: %w", s.kernelLog, err)
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() { // ends a read that waits
		select {
		case <-stop:
			f.Close()
		case <-ended:
		}
	}()
	record := make([]byte, maxRecord)
	for {
		n, err := f.Read(record)
		if errors.Is(err, syscall.EPIPE) { // records were overwritten before they were read
			continue
		}
		if err != nil {
			return fmt.Errorf("read the kernel's log: %w", err)
		}
		if x, ok := parseXid(string(record[:n])); ok {
			x.TS = clock.Monotonic()
			s.keepXid(x)
		}
	}
}

func (s *Source) keepXid(x recording.Xid) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if gpu, ok := s.buses[x.Bus]; ok {
		x.GPU, x.UUID = gpu.index, gpu.uuid
	}
	if len(s.xids) == maxXids {
		s.xids = slices.Delete(s.xids, 0, 1)
	}
	s.xids = append(s.xids, x)
	i := slices.IndexFunc(s.xidCounts, func(c recording.XidCount) bool { return c.Bus == x.Bus && c.Code == x.Code })
	switch {
	case i >= 0:
		s.xidCounts[i].Count++
	case len(s.xidCounts) < maxXidCounts:
		s.xidCounts = append(s.xidCounts, recording.XidCount{GPU: x.GPU, Bus: x.Bus, Code: x.Code, Count: 1})
	}
}

// XidCounts returns how often errors of GPUs were reported, by GPU and code.
func (s *Source) XidCounts() []recording.XidCount {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.xidCounts)
}

// Xids returns the errors of GPUs within [from, to] (ns).
func (s *Source) Xids(from, to uint64) []recording.Xid {
	s.mu.Lock()
	defer s.mu.Unlock()
	return within(s.xids, func(x recording.Xid) bool { return x.TS >= from && x.TS <= to })
}
