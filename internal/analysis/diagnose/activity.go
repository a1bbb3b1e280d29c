package diagnose

import (
	"regexp"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/summary/gpu"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// kinds classifies the activities of one device.
type kinds struct {
	t        *timeline.Timeline
	memory   []bool // by kernel: its name says that it waits for memory
	talks    []bool // by kernel: it communicates with other GPUs; nil: none does
	sms      uint64 // multiprocessors; 0: not known
	kernels  uint64 // how many
	time     uint64 // ns, summed over kernels
	smallest uint64 // blocks of the kernels that are small, summed over time: for the evidence
	small    uint64 // ns
	poor     [poorKinds]runs
	heldBy   copiers
	freeBy   copiers
}

// runs counts kernels.
type runs struct{ runs, time uint64 }

// poorKinds is the number of kinds of inefficient kernels: memoryKernel, smallKernel and tinyKernel.
const poorKinds = tinyKernel - memoryKernel + 1

// poorIndex is the index of the kind of a finding.
func poorIndex(id cause.ID) doing {
	switch id {
	case cause.BandwidthBound:
		return 0
	case cause.SmallBatch:
		return smallKernel - memoryKernel
	}
	return tinyKernel - memoryKernel
}

// copiers sums the time of copies by the thread that requested them, and by function.
type copiers struct{ threads, calls tally }

// flush prepares them for copying.
func (c *copiers) flush() {
	c.threads.flush()
	c.calls.flush()
}

func (c *copiers) merge(o *copiers) {
	c.threads.merge(&o.threads)
	c.calls.merge(&o.calls)
}

func newKinds(t *timeline.Timeline, memory, talks []bool, dev *timeline.Device) *kinds {
	k := &kinds{t: t, memory: memory, talks: talks}
	if dev.Info != nil {
		k.sms = uint64(dev.Info.SMs)
	}
	return k
}

// of returns the kind of an activity.
func (k *kinds) of(act *timeline.Activity) doing {
	e := &k.t.Rec.Events[act.Event]
	switch act.Kind {
	case timeline.Kernel:
		what := k.kernel(act, e)
		if what >= memoryKernel && what <= tinyKernel {
			p := &k.poor[what-memoryKernel]
			p.runs++
			p.time += act.End - act.Start
		}
		return what
	case timeline.Copy:
		if act.Exchange {
			return communicating
		}
		what := copyKind(e)
		k.asked(act, what)
		return what
	}
	return setting
}

// asked records which thread requested a copy.
func (k *kinds) asked(act *timeline.Activity, what doing) {
	by := &k.freeBy
	switch what {
	case heldToDevice, heldToHost:
		by = &k.heldBy
	case freeToDevice, freeToHost, peerCopy:
	default:
		return
	}
	if act.Op == timeline.None {
		return
	}
	op := k.t.Outermost(act.Op)
	th := &k.t.Threads[k.t.ThreadOf(op)]
	by.threads.add(threadKey(k.t.Processes[th.Process].PID, th.TID), act.End-act.Start)
	by.calls.add(uint64(k.t.Ops[op].Func), act.End-act.Start)
}

func (k *kinds) kernel(act *timeline.Activity, e *event.Event) doing {
	if k.talks != nil {
		if i := k.t.KernelIndex(act); i != timeline.None && k.talks[i] {
			return communicating
		}
	}
	k.kernels++
	k.time += act.End - act.Start
	if i := k.t.KernelIndex(act); i != timeline.None && k.memory[i] {
		return memoryKernel
	}
	if e.Dur < gpu.TinyBelow {
		return tinyKernel
	}
	// With fewer blocks than half the multiprocessors, most of the device does nothing, whatever the
	// kernel does: a block runs on one multiprocessor (CUDA C++ Programming Guide, "Hardware Implementation").
	if n := blocks(e); n > 0 && 2*n < k.sms {
		k.small += act.End - act.Start
		k.smallest += n * (act.End - act.Start)
		return smallKernel
	}
	return fullKernel
}

// The directions and kinds of memory of copies, as bpf/event.h and the CUPTI reference number them:
// CUpti_ActivityMemcpyKind, CUpti_ActivityMemoryKind.
const (
	toDevice, toHost, toArray, fromArray, hostToHost, betweenPeers = 1, 2, 3, 4, 9, 10

	pageable = 1

	// resultBytes is up to how many bytes a copy to the host is a way to wait for a result: what the driver stages
	// without waiting (CUDA driver API, "API synchronization behavior"), and nothing that bandwidth matters for.
	resultBytes = 64 << 10
)

// copyKind returns the kind of a copy.
func copyKind(e *event.Event) doing {
	source, destination, async := uint8(e.Ret>>8), uint8(e.Ret>>16), e.Ret>>24&1 != 0
	held := !async || source == pageable || destination == pageable
	switch uint8(e.Ret) {
	case toDevice, toArray:
		if held {
			return heldToDevice
		}
		return freeToDevice
	case toHost, fromArray, hostToHost:
		switch {
		case held && e.Args[2] <= resultBytes:
			return resultCopy
		case held:
			return heldToHost
		}
		return freeToHost
	case betweenPeers:
		return peerCopy
	}
	return ownCopy
}

// memoryBound are names of kernels that read each weight once and compute next to nothing with it, so that they
// wait for memory: products of a matrix with a vector or a few columns (cuBLAS gemv and gemvx, dot kernels, nvjet and
// CUTLASS tiles of 8 or 16 columns, ggml's mul_mat_vec), and attention of one new token to all that came before.
var memoryBound = regexp.MustCompile(`(?i)gemv|mul_mat_vec|mmvq|dot_kernel|nvjet_\w+?_(\d+x(8|16)|(8|16)x\d+)_|` +
	`(^|\D)\d+x(8|16)_(\d+x)?\d+_|splitkv|paged_attention|batch_?decode|decode_attention|masked_multihead`)

// converts are names of PyTorch's kernels that copy a tensor, most often into another type (Copy.cu in
// aten/src/ATen/native/cuda): autocast makes one for each weight, and they compute nothing.
var converts = regexp.MustCompile(`(direct|float\w*)_copy_kernel_cuda`)

// waitsForMemory reports whether a kernel waits for memory, by its name.
func waitsForMemory(name string) bool {
	name = name[:min(len(name), maxKernelName)]
	return memoryBound.MatchString(name) || converts.MatchString(name)
}

// mostlyConverts reports whether most of the time of kernels goes into those that copy and convert.
func (a *analysis) mostlyConverts() bool {
	if a.gpu == nil {
		return false
	}
	var all, converting uint64
	for i := range a.gpu.Kernels.Rows {
		k := &a.gpu.Kernels.Rows[i]
		if !a.fits(k, cause.BandwidthBound) {
			continue
		}
		all += k.Time
		if converts.MatchString(k.Full[:min(len(k.Full), maxKernelName)]) {
			converting += k.Time
		}
	}
	return 2*share(converting, all)*float64(a.total.Did[memoryKernel]) > float64(a.total.compute())
}

// memoryKernels returns, for each kernel of the recording, whether it waits for memory.
func memoryKernels(t *timeline.Timeline) []bool {
	if t.Rec.Meta.GPU == nil {
		return nil
	}
	out := make([]bool, len(t.Rec.Meta.GPU.Kernels))
	for i, k := range t.Rec.Meta.GPU.Kernels {
		out[i] = waitsForMemory(k.Name)
	}
	return out
}

// maxKernelName bounds how much of a kernel's name is read: with templates it can have 10 kB.
const maxKernelName = 512
