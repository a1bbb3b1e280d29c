package gpu

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/agent"
	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/gpu/inject"
	"github.com/inferscope/inferscope/internal/capture/proc"
)

// loader brings an image into a process: inject.Injector.
type loader interface {
	Load(ctx context.Context, p *proc.Process, image inject.Image) (inject.Result, error)
	// Wait returns when nothing that Load needed is in any process any more.
	Wait() error
}

// AgentInjector brings this machine's agent into processes. It implements injector.
type AgentInjector struct {
	loader loader
	image  []byte
	layout agent.Layout
	build  [20]byte
}

// NewAgentInjector takes the agent for this machine. Its error says that there is none.
func NewAgentInjector(loader loader) (*AgentInjector, error) {
	image, err := agent.Image(runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	layout, err := agent.Describe(image)
	if err != nil {
		return nil, err
	}
	a := &AgentInjector{loader: loader, image: image, layout: layout}
	if n, err := hex.Decode(a.build[:], []byte(layout.BuildID)); err != nil || n != len(a.build) {
		return nil, fmt.Errorf("the agent's build id %q is not one of 20 bytes: run 'make generate'", layout.BuildID)
	}
	if layout.ParamsSize != paramsBytes {
		return nil, fmt.Errorf(
			"the agent takes %d bytes of parameters, this daemon gives %d: run 'make generate'",
			layout.ParamsSize,
			paramsBytes,
		)
	}
	return a, nil
}

// Build returns the build id of the agent.
func (a *AgentInjector) Build() [20]byte { return a.build }

// Wait implements injector.
func (a *AgentInjector) Wait() error { return a.loader.Wait() }

// answerIn is how long an agent has to say hello. It takes milliseconds; a machine that is
// overloaded, or a dlopen that waits for another one, takes longer.
const answerIn = 5 * time.Second

// Inject brings the agent into p, as injector says.
func (a *AgentInjector) Inject(ctx context.Context, p *proc.Process, start start) (Entered, error) {
	const page = 4096
	helloAt := (int64(len(a.image)) + page - 1) &^ (page - 1)
	result, err := a.loader.Load(ctx, p, inject.Image{
		Bytes: a.image, ParamsOffset: int(a.layout.Params), StartOffset: a.layout.Start, BuildID: a.build,
		Size: helloAt + page, Params: start.params(helloAt).bytes(), FDAt: paramsFD, NowAt: paramsHeartbeat,
		Sign: ringName, Known: start.Known,
	})
	if err != nil {
		return Entered{}, told(err)
	}
	defer result.FD.Close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerIn)
	defer cancel()
	answer, err := result.Await(ctx, p, helloAt, helloBytes, func(b []byte) bool { _, ok := parseHello(b); return ok })
	if err != nil {
		return Entered{Stopped: result.Stopped}, told(err)
	}
	h, _ := parseHello(answer)
	entered := Entered{RingFD: int(h.ringFD), Stopped: result.Stopped, Held: held(h.left, &result), Steps: result.Steps}
	if h.err != 0 {
		return entered, fmt.Errorf("the agent could not start in pid %d: %w", p.PID, unix.Errno(-h.err))
	}
	return entered, nil
}

// held is how long the thread was kept from its own work. left is the target's word, ns: 0 is
// returned where it cannot be true.
func held(left uint64, r *inject.Result) time.Duration {
	if left < r.At || left > clock.Monotonic() {
		return 0
	}
	return time.Duration(left - r.At)
}

// params writes down how an agent begins. The first heartbeat is put in when it begins:
// until it has the daemon's own, an agent believes in that.
func (s *start) params(helloAt int64) *params {
	p := &params{
		fd: -1, slots: s.Slots, mode: modeWindows, helloAt: uint64(helloAt), cupti: s.CUPTI,
		times: times{uint64(s.Times[0]), uint64(s.Times[1]), uint64(s.Times[2])},
	}
	switch {
	case s.Off:
		p.mode = modeOff
	case s.Continuous:
		p.mode = modeContinuous
	}
	return p
}

// passing are reasons that may be gone the next time.
func passing() []error {
	return []error{
		inject.ErrMoved,
		inject.ErrNoAnswer,
		inject.ErrStopped,
		inject.ErrShared,
		inject.ErrGone,
		inject.ErrStack,
		inject.ErrPreceded,
	}
}

// told makes an error of package inject one that the source understands, with its advice.
func told(err error) error {
	if hint := inject.HintOf(err); hint != "" {
		err = fmt.Errorf("%w; %s", err, hint)
	}
	var r *inject.Refusal
	switch {
	case errors.Is(err, inject.ErrIdle):
		return fmt.Errorf("%w: %w", errIdle, err)
	case !errors.As(err, &r):
		return err
	}
	for _, reason := range passing() {
		if errors.Is(err, reason) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", errRefused, err)
}
