package amdgpu

import (
	"encoding/binary"
	"errors"
)

// metricsLayout tells where a revision of gpu_metrics has the reasons for low clocks (struct gpu_metrics_v* in the
// kernel's kgd_pp_interface.h). Revisions without them, or with bits that differ by ASIC, are not read.
type metricsLayout struct {
	format, content byte
	least           int // bytes
	status          int // offset of indep_throttle_status
	residency       int // offset of prochot_residency_acc, which others follow
}

// metricsLayouts are known layouts. Of one revision, the one with the larger minimum size comes first.
var metricsLayouts = []metricsLayout{
	{format: 1, content: 3, least: 120, status: 112},
	{format: 1, content: 6, least: 1024, residency: 36},
	{format: 1, content: 6, least: 128, residency: 108}, // before Linux had parts of GPUs in it
	{format: 1, content: 7, least: 64, residency: 44},
	{format: 1, content: 8, least: 64, residency: 44},
	{format: 2, content: 2, least: 128, status: 120},
	{format: 2, content: 3, least: 128, status: 120},
	{format: 2, content: 4, least: 128, status: 120},
}

// Reasons for low clocks, as NVML numbers them.
const (
	powerReason    = 0x4
	slowdownReason = 0x8
	heatReason     = 0x20
	hotReason      = 0x40
)

// Bits of indep_throttle_status (SMU_THROTTLER_* of the kernel's amdgpu_smu.h).
const (
	powerBits    = 0xff          // PPT0 to SPPT_APU
	currentBits  = 0x7f << 16    // TDC_GFX to EDC_GFX
	heatBits     = 0xfff << 32   // TEMP_GPU to TEMP_LIQUID1
	hotBits      = 0xf << 44     // VRHOT0 to PROCHOT_GFX
	slowdownBits = 1<<23 | 3<<56 // APCC, PPM, FIT
)

// residencies count for how long something held the clocks down: PROCHOT, the power limit, heat of the socket, of
// voltage regulators and of memory.
type residencies [5]uint32

// reasonOf is what residencies stand for.
var reasonOf = [len(residencies{})]uint64{hotReason, powerReason, heatReason, heatReason, heatReason}

var errMetrics = errors.New("gpu_metrics has another format")

// reasons translates why clocks are low, or were since the last call, into the bits that NVML has for it.
func (c *card) reasons(metrics []byte) (uint64, error) {
	for _, l := range metricsLayouts {
		if len(metrics) < l.least || metrics[2] != l.format || metrics[3] != l.content ||
			int(binary.LittleEndian.Uint16(metrics)) < l.least {
			continue
		}
		if l.status > 0 {
			return statusReasons(binary.LittleEndian.Uint64(metrics[l.status:])), nil
		}
		return c.residencyReasons(metrics[l.residency:]), nil
	}
	return 0, errMetrics
}

func statusReasons(status uint64) (out uint64) {
	if status == 1<<64-1 { // the driver fills what it does not know
		return 0
	}
	for _, r := range []struct{ bits, reason uint64 }{
		{powerBits | currentBits, powerReason},
		{slowdownBits, slowdownReason},
		{heatBits, heatReason},
		{hotBits, hotReason},
	} {
		if status&r.bits != 0 {
			out |= r.reason
		}
	}
	return out
}

// residencyReasons returns why clocks were low since the last call; 0 for the first one after a start.
func (c *card) residencyReasons(counters []byte) (out uint64) {
	before, now := c.throttled, &residencies{}
	for i := range now {
		now[i] = binary.LittleEndian.Uint32(counters[4*i:])
		if before != nil && now[i] > before[i] && now[i] != 1<<32-1 { // the driver fills what it does not know
			out |= reasonOf[i]
		}
	}
	c.throttled = now
	return out
}
