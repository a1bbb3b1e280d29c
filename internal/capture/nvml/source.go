// Package nvml is the source of what GPUs' sensors say: power, temperature, clocks and why they are low, utilization,
// memory, ECC errors. NVML is a C library, and the daemon is a static program without cgo: so the driver's own
// nvidia-smi asks NVML ten times a second, as a child process that runs only while a target uses a GPU. A second one
// reads once a second what PCIe carries. Every ten seconds the counters of NVLink are read, and what each process
// holds; the kernel's log is read for errors of GPUs (Xid).
package nvml

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/demand"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// sourceName is what the source is called in status and reports.
const sourceName = "gpu sensors"

// Bounds.
const (
	interval   = 100 * time.Millisecond
	maxSamples = 10 * 60 * 10 * 8 // ten minutes of eight GPUs
	maxGPUs    = 64
	maxLine    = 4096
	restart    = 10 * time.Second // after it has ended by itself
	firstLine  = 5 * time.Second  // in which the first answer must come
	latestAge  = 5_000_000_000    // ns
)

// places are where the driver's packages put nvidia-smi. PATH is not asked: the daemon is privileged.
func places() []string {
	return []string{
		"/usr/bin/nvidia-smi",
		"/usr/local/bin/nvidia-smi",
		"/usr/lib/wsl/lib/nvidia-smi",
		"/run/nvidia/driver/usr/bin/nvidia-smi",
	}
}

// Options are the settings of New. The zero value is right for a daemon.
type Options struct {
	Program   string // tests: stands in for nvidia-smi
	KernelLog string // tests: stands in for /dev/kmsg
}

// Source samples the sensors of all GPUs of the machine. It implements daemon.Source.
type Source struct {
	program   string
	kernelLog string
	worker    *demand.Worker

	mu        sync.Mutex
	samples   []recording.Sensor
	processes []recording.GPUProcess // as nvidia-smi said last
	xids      []recording.Xid
	xidCounts []recording.XidCount // by GPU and code, maxXidCounts at most
	buses     map[string]gpuID     // by bus
	err       error                // why there are no samples; nil: there are, or nobody wants any
	logErr    error                // why the kernel's log is not read
	askErr    error                // why it is not known what processes hold
	parts     []recording.GPUPart  // as nvidia-smi said last
	partsErr  error                // why they are not known
	links     map[int]*traffic     // by GPU
	topology  []recording.GPULink  // nil: not asked for yet
	linkErr   error                // why it is not known what PCIe carries
	nvlinkErr error                // why it is not known what NVLink carries

	topologyErr   error // why it is not known how GPUs are connected
	topologyTried int

	children map[int]*exec.Cmd // nvidia-smi that run on, by pid

	nvlinkPeriod time.Duration // between readings of NVLink
}

// gpuID is what a GPU is called.
type gpuID struct {
	index int
	uuid  string
}

// New makes a source; nothing is started before a target uses a GPU.
func New(opts Options) *Source {
	s := &Source{
		program: opts.Program, kernelLog: cmp.Or(opts.KernelLog, "/dev/kmsg"),
		buses: map[string]gpuID{}, links: map[int]*traffic{}, children: map[int]*exec.Cmd{},
		nvlinkPeriod: nvlinkPeriod,
	}
	s.worker = demand.New(demand.Options{Uses: cuda.IsDriverFile, Start: s.start, Stopping: s.endChildren})
	if s.program == "" {
		for _, path := range places() {
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
				s.program = path
				break
			}
		}
	}
	return s
}

// Name returns what the source is called in status and reports.
func (s *Source) Name() string { return sourceName }

// Follow begins to sample where p maps the driver.
func (s *Source) Follow(p *proc.Process) error {
	if s.program != "" {
		s.worker.Follow(p)
	}
	return nil
}

// Forget ends the sampling with the last process that used a GPU.
func (s *Source) Forget(p *proc.Process) { s.worker.Forget(p) }

// Close ends the sampling.
func (s *Source) Close() error {
	s.worker.Close()
	return nil
}

func (s *Source) start(stop <-chan struct{}, run func(func())) {
	s.mu.Lock()
	s.forgetLinks()
	s.mu.Unlock()
	for _, work := range []func(stop <-chan struct{}){
		s.run, s.watchPCIe, s.watchNVLink, s.askProcesses, s.readLog,
	} {
		run(func() { work(stop) })
	}
}

// endChildren ends what runs. stop is closed by then, so that no other child starts.
func (s *Source) endChildren() {
	s.mu.Lock()
	defer s.mu.Unlock()
	kill(slices.Collect(maps.Values(s.children)))
}

// run lets nvidia-smi sample until stop is closed, again and again where it ends by itself.
func (s *Source) run(stop <-chan struct{}) {
	lists := fieldLists()
	for {
		err := s.sample(lists[0], stop)
		select {
		case <-stop:
			return
		default:
		}
		rest := restart
		if errors.Is(err, errField) && len(lists) > 1 {
			lists, rest = lists[1:], 0
		}
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
		select {
		case <-stop:
			return
		case <-time.After(rest):
		}
	}
}

// errField says that this driver's nvidia-smi does not know a field.
var errField = errors.New("nvidia-smi does not know a field")

// sample reads one run of nvidia-smi.
func (s *Source) sample(fields []field, stop <-chan struct{}) error {
	read := func(r io.Reader, began func()) error { return s.read(r, fields, began) }
	return s.stream(stop, read, "--query-gpu="+names(fields), "--format=csv,noheader,nounits",
		fmt.Sprintf("-lms=%d", interval.Milliseconds()))
}

// stream runs nvidia-smi, which goes on until it is ended, and lets read take what it says. read calls began with the
// first line that makes sense.
func (s *Source) stream(
	stop <-chan struct{}, read func(r io.Reader, began func()) error, args ...string,
) error {
	cmd := exec.Command(s.program, args...) //nolint:noctx // end kills it
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("%s: %w", s.program, err)
	}
	s.mu.Lock()
	select {
	case <-stop:
		s.mu.Unlock()
		return nil
	default:
	}
	if err = cmd.Start(); err == nil {
		s.children[cmd.Process.Pid] = cmd
	}
	s.mu.Unlock()
	if err != nil {
		return fmt.Errorf("%s: %w", s.program, err)
	}
	late := time.AfterFunc(firstLine, func() { _ = cmd.Process.Kill() }) // it hangs where a GPU has fallen off the bus
	first := read(out, func() { late.Stop() })
	late.Stop()
	_ = cmd.Process.Kill() // where its answers made no sense
	s.mu.Lock()
	delete(s.children, cmd.Process.Pid)
	s.mu.Unlock()
	err = cmd.Wait()
	if first != nil {
		return first
	}
	if err == nil {
		return fmt.Errorf("%s ended", filepath.Base(s.program))
	}
	return fmt.Errorf("%s ended: %w", filepath.Base(s.program), err)
}

// read takes lines until there are no more; began is called with the first that makes sense.
func (s *Source) read(r io.Reader, fields []field, began func()) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, maxLine), maxLine)
	for lines.Scan() {
		line := lines.Text()
		if strings.Contains(line, "is not a valid field") {
			return errField
		}
		a, err := parse(line, fields)
		if err != nil {
			return err
		}
		began()
		a.TS = clock.Monotonic()
		s.keep(a)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read what nvidia-smi says: %w", err)
	}
	return nil
}

func (s *Source) keep(a answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = nil
	s.buses[a.bus] = gpuID{a.GPU, a.UUID}
	if t := s.links[a.GPU]; t != nil {
		t.add(&a.Sensor)
	}
	if len(s.samples) >= maxSamples {
		s.samples = slices.Clone(s.samples[maxSamples/4:])
	}
	s.samples = append(s.samples, a.Sensor)
}

// Sensors returns the samples within [from, to] (ns).
func (s *Source) Sensors(from, to uint64) []recording.Sensor {
	s.mu.Lock()
	defer s.mu.Unlock()
	return within(s.samples, func(s recording.Sensor) bool { return s.TS >= from && s.TS <= to })
}

// Latest returns the last sample of each GPU, by index; those of more than latestAge ago do not count.
func (s *Source) Latest() []recording.Sensor {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, seen := clock.Monotonic(), map[int]bool{}
	var out []recording.Sensor
	for _, one := range slices.Backward(s.samples) {
		if one.TS+latestAge < now || len(seen) == maxGPUs {
			break
		}
		if !seen[one.GPU] {
			seen[one.GPU] = true
			out = append(out, one)
		}
	}
	slices.SortFunc(out, func(a, b recording.Sensor) int { return cmp.Compare(a.GPU, b.GPU) })
	return out
}

// within returns the elements of a list that ok accepts; the list stays as it is.
func within[T any](list []T, ok func(T) bool) []T {
	var out []T
	for _, v := range list {
		if ok(v) {
			out = append(out, v)
		}
	}
	return out
}

// State reports whether sensors are read.
func (s *Source) State() recording.Source {
	works := s.worker.Works()
	s.mu.Lock()
	defer s.mu.Unlock()
	state := recording.Source{Name: sourceName, State: "waiting", Detail: "no target uses a GPU", Optional: true}
	switch {
	case s.program == "":
		state.State, state.Detail = "unavailable", "nvidia-smi is not installed here"
	case !works:
	case s.err != nil:
		state.State, state.Detail = "unavailable", s.err.Error()
	default:
		state.State, state.Detail = "running", "nvidia-smi reads them ten times a second"
		if s.logErr != nil {
			state.Detail += "; errors of GPUs (Xid) are not seen: " + s.logErr.Error()
		}
		if s.askErr != nil {
			state.Detail += "; what each process holds is not known: " + s.askErr.Error()
		}
		if s.partsErr != nil {
			state.Detail += "; the parts of divided GPUs are not known: " + s.partsErr.Error()
		}
		if s.linkErr != nil {
			state.Detail += "; what PCIe carries is not known: " + s.linkErr.Error()
		}
		if s.nvlinkErr != nil {
			state.Detail += "; what NVLink carries is not known: " + s.nvlinkErr.Error()
		}
		if s.topologyErr != nil {
			state.Detail += "; how GPUs are connected is not known: " + s.topologyErr.Error()
		}
	}
	return state
}

// Losses returns nothing: State says what is not there.
func (s *Source) Losses() []loss.Loss { return nil }

// Helpers returns the processes that read the sensors.
func (s *Source) Helpers() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.children))
}
