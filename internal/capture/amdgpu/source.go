// Package amdgpu is the source of what sensors of AMD's GPUs say: power, temperature, clocks and why they are low,
// load, memory. The amdgpu driver gives them in files below /sys/class/drm, which need no library and no other program.
package amdgpu

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/demand"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// sourceName is what the source is called in status and reports.
const sourceName = "amd gpu sensors"

// folder is where the kernel lists graphics cards.
const folder = "/sys/class/drm"

// Bounds.
const (
	interval   = 100 * time.Millisecond
	maxSamples = 10 * 60 * 10 * 8       // ten minutes of eight GPUs
	linkAge    = 3_000_000_000          // ns in which a reading of PCIe counts
	linkPause  = 100 * time.Millisecond // between readings, of which each takes a second
	latestAge  = 5_000_000_000          // ns
)

// Options are the settings of New. The zero value is right for a daemon.
type Options struct {
	Folder  string // tests: stands in for /sys/class/drm
	Compute string // tests: stands in for /sys/class/kfd/kfd
}

// link is what PCIe of one GPU carried last, bytes a second.
type link struct{ rx, tx, at uint64 }

// Source samples the sensors of AMD's GPUs while a target uses HIP. It implements daemon.Source.
type Source struct {
	cards   []card
	compute string // the compute driver's folder
	worker  *demand.Worker
	linking sync.WaitGroup // reads of pcie_bw, of which each takes a second

	mu        sync.Mutex
	samples   []recording.Sensor
	links     map[int]link
	processes []recording.GPUProcess // as they were read last
	errs      []error                // by GPU: why its sensors are not known
}

// Present reports whether the machine has a GPU of AMD.
func Present() bool { return len(cards(folder)) > 0 }

// New makes a source; nothing is read before a target uses HIP.
func New(opts Options) *Source {
	list := cards(cmp.Or(opts.Folder, folder))
	s := &Source{
		cards: list, compute: cmp.Or(opts.Compute, computeFolder),
		links: map[int]link{}, errs: make([]error, len(list)),
	}
	isHIP := func(base string) bool { return strings.HasPrefix(base, "libamdhip64.so") }
	s.worker = demand.New(demand.Options{Uses: isHIP, Start: s.start})
	return s
}

// Name returns what the source is called in status and reports.
func (s *Source) Name() string { return sourceName }

// Follow begins to sample where p maps the HIP runtime.
func (s *Source) Follow(p *proc.Process) error {
	if len(s.cards) > 0 {
		s.worker.Follow(p)
	}
	return nil
}

// Forget ends the sampling with the last process that used HIP. It does not wait for reads of pcie_bw under way, whose
// results are dropped.
func (s *Source) Forget(p *proc.Process) { s.worker.Forget(p) }

// Close ends the sampling.
func (s *Source) Close() error {
	s.worker.Close()
	s.linking.Wait()
	return nil
}

func (s *Source) start(stop <-chan struct{}, run func(func())) {
	s.mu.Lock()
	clear(s.errs)
	s.mu.Unlock()
	run(func() { s.sample(stop) })
	run(func() { s.watchProcesses(stop) })
	for i := range s.cards {
		s.linking.Go(func() { s.watchLink(&s.cards[i], stop) })
	}
}

func (s *Source) sample(stop <-chan struct{}) {
	for i := range s.cards {
		s.cards[i].throttled = nil // what was counted since the sampling before is of no sample
	}
	next := time.NewTicker(interval)
	defer next.Stop()
	for {
		for i := range s.cards {
			one, err := s.cards[i].read(clock.Monotonic())
			s.keep(one, err)
		}
		select {
		case <-stop:
			return
		case <-next.C:
		}
	}
}

func (s *Source) keep(one recording.Sensor, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.errs[one.GPU] = err; err != nil {
		return
	}
	if l, ok := s.links[one.GPU]; ok && one.TS <= l.at+linkAge {
		one.Links, one.PCIeRx, one.PCIeTx = recording.PCIeLink|recording.PCIeAtMost, l.rx, l.tx
	}
	if len(s.samples) >= maxSamples {
		s.samples = slices.Clone(s.samples[maxSamples/4:])
	}
	s.samples = append(s.samples, one)
}

// watchLink reads what PCIe carries until stop is closed, or until the GPU does not tell.
func (s *Source) watchLink(c *card, stop <-chan struct{}) {
	for {
		rx, tx, ok := c.pcie()
		if !ok || !s.keepLink(c.index, link{rx, tx, clock.Monotonic()}, stop) {
			return
		}
		select {
		case <-stop:
			return
		case <-time.After(linkPause):
		}
	}
}

// keepLink reports false, and keeps nothing, once stop is closed.
func (s *Source) keepLink(gpu int, l link, stop <-chan struct{}) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-stop:
		return false
	default:
	}
	s.links[gpu] = l
	return true
}

// Sensors returns the samples within [from, to] (ns).
func (s *Source) Sensors(from, to uint64) (out []recording.Sensor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.samples {
		if one.TS >= from && one.TS <= to {
			out = append(out, one)
		}
	}
	return out
}

// Latest returns the last sample of each GPU, by index; those of more than latestAge ago do not count.
func (s *Source) Latest() []recording.Sensor {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, last := clock.Monotonic(), make([]recording.Sensor, len(s.cards))
	for _, one := range s.samples[max(0, len(s.samples)-len(s.cards)):] {
		last[one.GPU] = one
	}
	return slices.DeleteFunc(last, func(one recording.Sensor) bool { return one.TS+latestAge < now })
}

// State reports whether sensors are read, and of which GPUs they are not.
func (s *Source) State() recording.Source { return s.state(s.worker.Works()) }

func (s *Source) state(works bool) recording.Source {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := recording.Source{Name: sourceName, State: "waiting", Detail: "no target uses HIP", Optional: true}
	var failed []string
	for _, err := range s.errs {
		if err != nil {
			failed = append(failed, err.Error())
		}
	}
	switch {
	case len(s.cards) == 0:
		state.State, state.Detail = "unavailable", "there is no GPU of AMD here"
	case !works:
	case len(failed) == len(s.cards):
		state.State, state.Detail = "unavailable", strings.Join(failed, "; ")
	default:
		state.State = "running"
		state.Detail = strings.Join(append([]string{"read from /sys/class/drm ten times a second"}, failed...), "; ")
	}
	return state
}

// Losses returns nothing: State says what is not there.
func (s *Source) Losses() []loss.Loss { return nil }
