package profile

import (
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/ring"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// Bounds of the ring of samples, in bytes. A sample is 40 bytes, 16 for each Python
// frame and 8 for each kernel frame: 600 bytes with 30 and 10 of them.
const (
	minRing     = 256 << 10
	maxRing     = 16 << 20
	goodSample  = 1024
	ringSeconds = 4 // a quarter of a second: five passes of the slowest drain timer
)

// budgetWindows is how many times a second the budget of switch samples is dealt out (NS_PER_WINDOW).
const budgetWindows = 10

// programs are the BPF programs that run first on every sample, and their maps.
type programs struct {
	objects bpf.SampleObjects
	mu      sync.Mutex // the ring may not be closed while it is read
	reader  *ring.Records
}

// loadPrograms loads the programs. It needs CAP_BPF and CAP_PERFMON, and Linux 5.15
// for bpf_task_pt_regs; no resource limit is raised.
func loadPrograms(opts *Options) (*programs, error) {
	spec, err := bpf.LoadSample()
	if err != nil {
		return nil, fmt.Errorf("read the programs for samples: %w", err)
	}
	spec.Maps[bpf.SampleMapSamples].MaxEntries = ringBytes(opts.Hz, runtime.NumCPU())
	if err := errors.Join(
		spec.Variables[bpf.SampleVarSwitchBudget].Set(perWindow(opts.Switches)),
		spec.Variables[bpf.SampleVarHaveLoop].Set(haveLoop()),
	); err != nil {
		return nil, fmt.Errorf("set the programs for samples up: %w", err)
	}
	p := &programs{}
	if err := spec.LoadAndAssign(&p.objects, nil); err != nil {
		return nil, explain(fmt.Errorf("load the programs for samples: %w", err))
	}
	if p.reader, err = ring.OpenRecords(p.objects.Samples); err != nil {
		return nil, errors.Join(fmt.Errorf("map the ring of samples: %w", err), p.objects.Close())
	}
	return p, nil
}

// perWindow is the part of a budget per second that is dealt out at a time.
func perWindow(switches int) uint64 { return uint64(max(1, switches/budgetWindows)) }

// setSwitches changes how many switch samples of a process are taken a second.
func (p *programs) setSwitches(n int) error {
	if err := p.objects.SwitchBudget.Set(perWindow(n)); err != nil {
		return fmt.Errorf("change the budget of switch samples: %w", err)
	}
	return nil
}

// setThreadEvents reports whether events are of threads.
func (p *programs) setThreadEvents() error {
	if err := p.objects.ThreadEvents.Set(uint64(1)); err != nil {
		return fmt.Errorf("tell the programs for samples about events of threads: %w", err)
	}
	return nil
}

// haveLoop reports whether the kernel has bpf_loop (5.17). Where it does not say, the
// programs do without.
func haveLoop() uint8 {
	if features.HaveProgramHelper(ebpf.PerfEvent, asm.FnLoop) == nil {
		return 1
	}
	return 0
}

// ringBytes returns the size of the ring: a power of two that holds what all CPUs
// together take in a quarter of a second.
func ringBytes(hz, cpus int) uint32 {
	want := hz * cpus * goodSample / ringSeconds
	want = min(max(want, minRing), maxRing)
	return 1 << bits.Len32(uint32(want-1))
}

func explain(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return clierror.New(clierror.Permission, "run the daemon as root or with CAP_BPF and CAP_PERFMON", err)
	}
	return err
}

// program returns the program for a cause.
func (p *programs) program(cause event.SampleCause) *ebpf.Program {
	if cause == event.Switch {
		return p.objects.SampleSwitch
	}
	return p.objects.SampleClock
}

// follow lets samples of pid be taken; layout may be nil. What was counted of it stays.
func (p *programs) follow(pid uint32, layout *bpf.SamplePythonLayout) error {
	v := p.process(pid)
	v.Python = bpf.SamplePythonLayout{}
	if layout != nil {
		v.Python = *layout
	}
	if err := p.objects.SampledProcesses.Put(pid, v); err != nil {
		return fmt.Errorf("tell the programs for samples of pid %d: %w", pid, err)
	}
	return nil
}

// process returns what the programs know of a process; nothing if it is not sampled.
func (p *programs) process(pid uint32) (v bpf.SampleSampledProcess) {
	if p.objects.SampledProcesses.Lookup(pid, &v) != nil {
		return bpf.SampleSampledProcess{}
	}
	return v
}

func (p *programs) forget(pid uint32) { _ = p.objects.SampledProcesses.Delete(pid) }

// chain lets every sample go on to the unwinder's entry program.
func (p *programs) chain(next *ebpf.Program) error {
	if err := p.objects.SampleNext.Put(uint32(0), next); err != nil {
		return fmt.Errorf("hand samples on to the native unwinder: %w", err)
	}
	return nil
}

// unchain ends every sample with our program.
func (p *programs) unchain() { _ = p.objects.SampleNext.Delete(uint32(0)) }

// read calls f with each record of the ring; what arrives meanwhile waits for the
// next call, so that a busy target cannot keep it forever.
func (p *programs) read(f func(record []byte)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reader != nil {
		p.reader.Read(f)
	}
}

// counts returns a counter of the programs, summed over the CPUs.
func (p *programs) counts(which bpf.SampleSampleCount) uint64 {
	var sum uint64
	for _, n := range p.perCPU(which) {
		sum += n
	}
	return sum
}

// perCPU returns a counter of the programs by CPU.
func (p *programs) perCPU(which bpf.SampleSampleCount) []uint64 {
	var perCPU []uint64
	if err := p.objects.SampleCounts.Lookup(uint32(which), &perCPU); err != nil {
		return nil // closed
	}
	return perCPU
}

func (p *programs) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var err error
	if p.reader != nil {
		err = p.reader.Close()
		p.reader = nil
	}
	return errors.Join(err, p.objects.Close())
}
