package gpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/capture/cudaapi"
	"github.com/inferscope/inferscope/internal/capture/gpu/inject"
	"github.com/inferscope/inferscope/internal/capture/gpu/quiesce"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
)

// Mode says when GPU activity and launches are recorded.
type Mode string

// The modes.
const (
	Windows    Mode = "windows"    // for Options.On in every Options.Period
	Continuous Mode = "continuous" // all the time
	Off        Mode = "off"        // never
)

// Defaults and bounds of windows. 200 ms in every 2 s cost 1 to 2% of the speed of programs that
// all the time costs 19 to 30% (docs/gpu-agent.md).
const (
	DefaultOn       = 200 * time.Millisecond
	DefaultPeriod   = 2 * time.Second
	defaultDeadline = time.Second
	minOn           = 10 * time.Millisecond
	maxPeriod       = time.Hour
)

// DefaultMinAge is how old a process is before an agent is injected, where all that use a GPU are watched.
const DefaultMinAge = 3 * time.Second

// defaultSlots are those of a ring: 4 MiB of the target's memory, which hold 100 ms of
// 650,000 events a second. A target that replays graphs was seen to make 200,000.
const defaultSlots = 1 << 16

// launches are the probes on launches, for processes without an agent.
type launches interface {
	// SetLaunches changes when launches of a process are probed. It must not block.
	SetLaunches(p proc.ID, mode cudaapi.LaunchMode)
	// LaunchWindows returns when launches of a process were probed within [from, to] (ns).
	LaunchWindows(pid uint32, from, to uint64) []recording.GPUWindow
}

// start is how an agent begins.
type start struct {
	Slots      uint32
	Continuous bool
	Off        bool             // nothing is recorded before it is asked for
	Times      [3]time.Duration // on, period, deadline
	CUPTI      string
	Known      []uint64 // inode numbers of the rings that p has open and that are no agent's of its own
}

// Entered says how an agent came in.
type Entered struct {
	RingFD  int           // in the target
	Stopped time.Duration // for how long a thread of the target was stopped
	Held    time.Duration // from its CUDA call until the agent's code had let it go; it ran its own dlopen in the end
	Steps   []inject.Step // what took that time
}

// injector brings the agent into running processes.
type injector interface {
	// Inject returns when the agent has answered. Its error wraps errIdle where no thread
	// came by before ctx was done, and errRefused where it will be the same the next time. Where p has made
	// another ring than those that start knows, an agent has come by itself, and none is injected.
	Inject(ctx context.Context, p *proc.Process, start start) (Entered, error)
	// Wait returns when nothing that Inject needed, such as probes, is in any process any more.
	Wait() error
}

// What an injector's error wraps.
var (
	errIdle    = errors.New("no CUDA call was made")
	errRefused = errors.New("the agent cannot be loaded")
)

// Options are the settings of New.
type Options struct {
	Mode     Mode          // "": Windows
	On       time.Duration // of a window; 0: DefaultOn
	Period   time.Duration // from one window's beginning to the next one's; 0: DefaultPeriod
	Deadline time.Duration // how long an agent waits to leave CUPTI in the good way; 0: defaultDeadline
	Inject   injector      // nil: no agent is injected or used (--no-inject)
	Build    [20]byte      // build id of the agent that Inject brings; zero: any is taken
	// Budget is the share of a process's time that recording may take, 0 to 1: windows become shorter and rarer where
	// they take more; 0: they stay.
	Budget float64
	// Watch is how long calls of a process are watched before the first window; 0: not at all (see launchers).
	Watch time.Duration
	// MinAge is how long a process has lived before an agent is injected: to load one costs more CPU time than all
	// the rest, and a program that ends at once has no window. Until then its launches are probed.
	MinAge time.Duration
	CUPTI  string // path of a libcupti in the target, for one that maps none
	Slots  uint32 // of a ring, a power of two; 0: the default
	// Index returns the event.Func of a driver function, by its exported name.
	Index    func(name string) (uint16, bool)
	Launches launches // nil: launches are not probed
	// Unobservable says why the calls of a process are not seen, and what to do, nil where they are: then nobody knows
	// which threads launch CUDA graphs, and no window opens (see launchers). nil: they always are.
	Unobservable func(p *proc.Process) error
	// Gate puts one before the driver in p; nil: there are none.
	Gate func(p *proc.Process, kind quiesce.Kind) (*quiesce.Gate, error)
	// Gone is closed when all probes, the gates among them, begin to go for good; nil: they never do.
	Gone <-chan struct{}
	Log  *zap.Logger // nil: silent
}

// Check says what is out of bounds (clierror.Usage), as New would.
func (o Options) Check() error { return o.check() }

// check fills defaults in, or says what is out of bounds (clierror.Usage).
func (o *Options) check() error {
	o.Mode = cmp.Or(o.Mode, Windows)
	o.On, o.Period = cmp.Or(o.On, DefaultOn), cmp.Or(o.Period, DefaultPeriod)
	o.Deadline = cmp.Or(o.Deadline, defaultDeadline)
	o.Slots = cmp.Or(o.Slots, defaultSlots)
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.Unobservable == nil {
		o.Unobservable = func(*proc.Process) error { return nil }
	}
	if o.Index == nil {
		o.Index = func(string) (uint16, bool) { return 0, false }
	}
	return o.bounds()
}

func (o *Options) bounds() error {
	bad := func(hint, format string, args ...any) error {
		return clierror.New(clierror.Usage, hint, fmt.Errorf(format, args...))
	}
	switch {
	case o.Mode != Windows && o.Mode != Continuous && o.Mode != Off:
		return bad("choose windows, continuous or off", "%q is no mode of recording GPU activity", string(o.Mode))
	case o.On < minOn:
		return bad(fmt.Sprintf("choose at least %s", minOn), "a window of %s is too short", o.On)
	case o.Period < 2*o.On || o.Period > maxPeriod:
		return bad(fmt.Sprintf("choose at least twice the window (%s) and at most %s, or continuous", o.On, maxPeriod),
			"a window every %s is out of range", o.Period)
	case !(o.Budget >= 0 && o.Budget <= 1):
		return bad(
			"choose 0 to 100 percent; 0 leaves windows as they are, whatever they cost",
			"an overhead budget of %g%% is out of range",
			100*o.Budget,
		)
	case len(o.CUPTI) >= 2*pathBytes:
		return bad(fmt.Sprintf("give a path of at most %d bytes", 2*pathBytes-1), "the path of libcupti is too long")
	case o.Slots < minSlots || o.Slots > maxSlots || o.Slots&(o.Slots-1) != 0:
		return fmt.Errorf(
			"a ring of %d slots cannot be made: give a power of two from %d to %d",
			o.Slots,
			minSlots,
			maxSlots,
		)
	}
	return nil
}

func (o *Options) times() times {
	return times{uint64(o.On), uint64(o.Period), uint64(o.Deadline)}
}
