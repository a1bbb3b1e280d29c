package profile

import (
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/procfile"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// cpuEvents are perf events of CPUs, of which the program leaves out what is not a target's.
// An event of a thread costs that thread some microseconds at each of its switches, because the
// kernel takes the event off the CPU and puts it on again, which means a timer set anew; an event of a CPU
// runs on, whoever has the CPU.
type cpuEvents struct {
	programs *programs
	clock    *ticker
	causes   []event.SampleCause

	mu     sync.Mutex
	cpus   []cpuEvent // none: nobody is sampled
	left   []string   // CPUs without events
	why    error      // of the last one
	hz     int        // 0: nothing is sampled
	looked time.Time
	passed uint64 // switches of targets that did not come to the program, estimated by those that did
}

// cpuEvent is the events of one CPU.
type cpuEvent struct {
	cpu          int
	clock, leave int    // descriptors; leave is -1 where switches are not sampled
	every        uint64 // switches of the CPU of which one comes to the program
	came, shed   uint64 // of these, and of them without a sample, when looked last
}

// maxSwitchRate is how many switches of a CPU come to the program a second. At 0.24 to 0.3 µs each they
// take 0.3% of it. Of more, only every so many-th comes, also of a thread that waits rarely.
const maxSwitchRate = 10_000

// lookForSwitches is how often the rate of switches is looked at.
const lookForSwitches = 250 * time.Millisecond

// mayOpenCPU returns why events of CPUs cannot be had; nil where they can.
func mayOpenCPU(c *ticker) error {
	cpus, err := procfile.CPUs(procfile.OnlineCPUs)
	if err != nil {
		return err
	}
	a := c.attr(event.Clock, DefaultHz, false)
	a.Bits |= unix.PerfBitDisabled
	fd, err := unix.PerfEventOpen(&a, -1, cpus[0], -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return openError(err)
	}
	return unix.Close(fd)
}

// on opens the events of every CPU that has none yet.
func (e *cpuEvents) on() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.openAll()
}

// openAll opens the events of CPUs that have none. The caller holds the lock.
func (e *cpuEvents) openAll() error {
	if e.hz == 0 {
		return nil
	}
	cpus, err := procfile.CPUs(procfile.OnlineCPUs)
	if err != nil {
		return err
	}
	have := map[int]bool{}
	for _, c := range e.cpus {
		have[c.cpu] = true
	}
	e.left, e.why = nil, nil
	for _, cpu := range cpus {
		if have[cpu] {
			continue
		}
		c, err := e.openCPU(cpu)
		if err != nil {
			e.left, e.why = append(e.left, strconv.Itoa(cpu)), err
			continue
		}
		e.cpus = append(e.cpus, c)
	}
	if len(e.left) > 0 {
		return fmt.Errorf("what runs on the CPUs %s is not sampled: %w", strings.Join(e.left, ", "), e.why)
	}
	return nil
}

func (e *cpuEvents) openCPU(cpu int) (cpuEvent, error) {
	c := cpuEvent{cpu: cpu, clock: -1, leave: -1, every: 1}
	for _, cause := range e.causes {
		fd, err := e.clock.openAt(-1, cpu, e.hz, cause, e.programs.program(cause).FD())
		if err != nil {
			c.close()
			return c, err
		}
		if cause == event.Switch {
			c.leave = fd
		} else {
			c.clock = fd
		}
	}
	return c, nil
}

func (c *cpuEvent) close() {
	for _, fd := range []int{c.clock, c.leave} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// off closes all events.
func (e *cpuEvents) off() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closeAll()
}

func (e *cpuEvents) closeAll() {
	for i := range e.cpus {
		e.cpus[i].close()
	}
	e.cpus, e.left = nil, nil
}

// set changes the frequency; 0 switches the events off. open reports whether somebody is sampled.
func (e *cpuEvents) set(hz int, open bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := e.hz
	e.hz = hz
	switch {
	case hz == before:
		return nil
	case hz == 0:
		e.closeAll()
		return nil
	case before == 0 && open:
		return e.openAll()
	}
	var errs []error
	for i := range e.cpus {
		if err := setPeriod(e.cpus[i].clock, e.clock.period(hz)); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// look opens the events of CPUs that came, and where a CPU switches so often that it would
// cost too much lets only every so many-th switch come to the program.
func (e *cpuEvents) look(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.cpus) == 0 {
		return
	}
	took := now.Sub(e.looked).Seconds()
	first := e.looked.IsZero() || took > 10*lookForSwitches.Seconds()
	e.looked = now
	came, shed := e.programs.perCPU(bpf.SampleSampleCountSAMPLE_COUNT_SWITCHES),
		e.programs.perCPU(bpf.SampleSampleCountSAMPLE_COUNT_SHED)
	for i := range e.cpus {
		c := &e.cpus[i]
		if c.leave < 0 || c.cpu >= len(came) || c.cpu >= len(shed) {
			continue
		}
		n := came[c.cpu] - c.came
		e.passed += (shed[c.cpu] - c.shed) * (c.every - 1)
		c.came, c.shed = came[c.cpu], shed[c.cpu]
		if first || took <= 0 {
			continue
		}
		if every := oneOf(float64(n*c.every) / took); every != c.every && setPeriod(c.leave, every) == nil {
			c.every = every
		}
	}
}

// oneOf returns of how many switches one is to come to the program, at so many a second. It is a prime: threads that
// take turns switch in a cycle, and a number that shares a factor with its length would always meet the same ones. It
// is another one each time, at random, for cycles that are longer.
func oneOf(rate float64) uint64 {
	least := uint64(rate / maxSwitchRate)
	if least == 0 {
		return 1
	}
	n := max(
		5,
		least+1+rand.Uint64N(least+1),
	) // cycles of two, three and four are common: a thread or two, and the idle task
	for !new(big.Int).SetUint64(n).ProbablyPrime(0) { // exact below 2^64
		n++
	}
	return n
}

// skipped returns how many switches of targets did not come to the program.
func (e *cpuEvents) skipped() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.passed
}

// unsampled returns which CPUs have no events, and why.
func (e *cpuEvents) unsampled() ([]string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.left, e.why
}
