package proc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// mapRingBytes holds about 200 records. A process that starts maps some ten
	// libraries; where more come within an interval, all targets are looked at.
	mapRingBytes = 32 << 10
	// maxMapRecord is an mmap2 record with a path of PATH_MAX.
	maxMapRecord = 4096 + 256
)

// mapRing is the ring of one CPU: a page of positions, then the records.
type mapRing struct {
	cpu     int
	fd      int
	memory  []byte
	page    *unix.PerfEventMmapPage
	data    []byte
	scratch []byte // a record that wraps around the end of data, made whole
}

func openMapRing(cpu int) (*mapRing, error) {
	attr := unix.PerfEventAttr{
		Type:        unix.PERF_TYPE_SOFTWARE,
		Size:        uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Config:      unix.PERF_COUNT_SW_DUMMY,
		Sample_type: unix.PERF_SAMPLE_TIME,
		Bits: unix.PerfBitMmap | unix.PerfBitMmap2 | unix.PerfBitSampleIDAll | unix.PerfBitExcludeKernel |
			unix.PerfBitUseClockID | unix.PerfBitWatermark | unix.PerfBitDisabled,
		Wakeup:  1, // byte: only samples could be counted
		Clockid: unix.CLOCK_MONOTONIC,
	}
	fd, err := unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("perf_event_open: %w", err)
	}
	page := os.Getpagesize()
	size := max(mapRingBytes, page)
	memory, err := unix.Mmap(fd, 0, page+size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("mapping the ring of a perf event: %w", err)
	}
	return &mapRing{
		cpu: cpu, fd: fd, memory: memory,
		page: (*unix.PerfEventMmapPage)(unsafe.Pointer(&memory[0])),
		data: memory[page:], scratch: make([]byte, 1<<16),
	}, nil
}

// watch turns the event on or off.
func (r *mapRing) watch(on bool) error {
	request := uint(unix.PERF_EVENT_IOC_DISABLE)
	if on {
		request = unix.PERF_EVENT_IOC_ENABLE
	}
	if err := unix.IoctlSetInt(r.fd, request, 0); err != nil {
		return fmt.Errorf("switching the event of CPU %d: %w", r.cpu, err)
	}
	return nil
}

func (r *mapRing) close() error {
	r.page, r.data = nil, nil
	return errors.Join(unix.Munmap(r.memory), unix.Close(r.fd))
}

// drain calls changed for each record of a file, and reports whether any may be
// missing. A ring that is nearly full counts as that: the kernel says that it
// dropped something only when it next has something to say.
func (r *mapRing) drain(changed func(pid uint32, at uint64, path []byte)) (lost bool) {
	head := atomic.LoadUint64(&r.page.Data_head)
	tail := r.page.Data_tail // ours alone
	if head == tail {
		return false
	}
	lost = head-tail > uint64(len(r.data)-maxMapRecord)
	for tail < head {
		record := r.record(tail, head)
		if record == nil { // nothing sensible: start anew
			lost = true
			break
		}
		tail += uint64(len(record))
		lost = readRecord(record, changed) || lost
	}
	atomic.StoreUint64(&r.page.Data_tail, head)
	return lost
}

// record returns the whole record at a position.
func (r *mapRing) record(tail, head uint64) []byte {
	offset := tail & uint64(len(r.data)-1)
	if offset+8 > uint64(len(r.data)) {
		return nil
	}
	size := uint64(binary.NativeEndian.Uint16(r.data[offset+6:]))
	if size < 8 || size > head-tail {
		return nil
	}
	if offset+size <= uint64(len(r.data)) {
		return r.data[offset : offset+size]
	}
	n := copy(r.scratch, r.data[offset:])
	copy(r.scratch[n:size], r.data)
	return r.scratch[:size]
}

// mmap2Name is where the path begins in struct perf_record_mmap2
// (include/uapi/linux/perf_event.h): header 8, pid, tid, addr, len, pgoff, inode 24, prot, flags.
const mmap2Name = 72

// readRecord takes an mmap2 record, whose last 8 bytes are its time because of
// sample_id_all. It reports whether the record says that others were lost. path is
// valid during the call.
func readRecord(record []byte, changed func(pid uint32, at uint64, path []byte)) (lost bool) {
	order := binary.NativeEndian
	switch order.Uint32(record) {
	case unix.PERF_RECORD_LOST:
		return true
	case unix.PERF_RECORD_MMAP2:
		if len(record) < mmap2Name+16 || !isFileName(record[mmap2Name:]) {
			return false
		}
		path, _, _ := bytes.Cut(record[mmap2Name:len(record)-8], []byte{0})
		changed(order.Uint32(record[8:]), order.Uint64(record[len(record)-8:]), path)
	}
	return false
}

// isFileName leaves out what the kernel calls //anon (generated code), [vdso] and [heap].
func isFileName(name []byte) bool {
	return name[0] != '[' && !(len(name) >= 6 && string(name[:6]) == "//anon")
}
