package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/format/clierror"
)

// HelperArgument makes inferscoped the process that keeps recordings.
const HelperArgument = "recorder-helper"

// order is a line from the daemon to its helper, and word one back.
type (
	order struct {
		Config *Config `json:"config,omitempty"`
		Save   *save   `json:"save,omitempty"`
	}
	save struct {
		ID     uint64 `json:"id"`
		PID    uint32 `json:"pid"` // 0: all targets
		Reason string `json:"reason"`
	}
	saved struct {
		ID    uint64   `json:"id"`
		Paths []string `json:"paths"`
		Error string   `json:"error,omitempty"`
	}
	word struct {
		State *State `json:"state,omitempty"`
		Saved *saved `json:"saved,omitempty"`
		Facts *Facts `json:"facts,omitempty"`
	}
)

// maxLine bounds a line between the two, in bytes.
const maxLine = 1 << 20

// niceness is that of the helper: whoever serves requests goes first.
const niceness = 10

// RunHelper is the process: it reads its Config from in, does what comes after it, and ends when in does. complete adds
// what a Config cannot hold; it is told where recordings are kept.
func RunHelper(in io.Reader, out io.Writer, log *zap.Logger, complete func(w *Worker, dir string)) error {
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, niceness)
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 4096), maxLine)
	var first order
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &first) != nil || first.Config == nil {
		return errors.New("this is a part of inferscoped, which starts it by itself")
	}
	var mu sync.Mutex
	tell := func(w word) {
		mu.Lock()
		defer mu.Unlock()
		_ = json.NewEncoder(out).Encode(w) // a daemon that is gone wants to hear nothing
	}
	w, err := newWorker(*first.Config, log, func(s State) { tell(word{State: &s}) })
	if err != nil {
		return err
	}
	w.facts = func(f Facts) { tell(word{Facts: &f}) }
	if complete != nil {
		complete(w, first.Config.Dir)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		defer stop()
		for lines.Scan() {
			var o order
			if json.Unmarshal(lines.Bytes(), &o) == nil && o.Save != nil {
				go func() { tell(word{Saved: w.answer(ctx, o.Save)}) }()
			}
		}
	}()
	return w.Run(ctx)
}

// Process is the helper, seen from the daemon. It is started again when it ends.
type Process struct {
	argv []string
	name func(*exec.Cmd)
	log  *zap.Logger
	cfg  Config

	facts func(Facts) // called with what each stretch says; may be nil

	mu      sync.Mutex
	state   State
	before  State // sums of the processes before the present one
	waiting map[uint64]chan *saved
	next    uint64
	orders  io.WriteCloser // nil while there is no process
	closing bool

	ended chan struct{} // closed when no process runs any more
}

// restartAfter is how long the daemon waits before it starts its helper again.
const restartAfter = 5 * time.Second

// Start starts argv as the helper. name may change how the process is called; facts, which may be nil, is called with
// what each stretch says.
func Start(argv []string, name func(*exec.Cmd), cfg Config, facts func(Facts), log *zap.Logger) (*Process, error) {
	// What is wrong with the directory is said at the start, and by the daemon.
	s, err := openShelf(cfg.Dir, cfg.Quota, cfg.Reserve, cfg.MaxAge)
	if err == nil && cfg.Upload != nil {
		_, err = newUploader(*cfg.Upload, s, log, nil)
	}
	if err != nil {
		return nil, err
	}
	p := &Process{
		argv:    argv,
		name:    name,
		log:     log,
		cfg:     cfg,
		facts:   facts,
		waiting: map[uint64]chan *saved{},
		ended:   make(chan struct{}),
	}
	go p.keep()
	return p, nil
}

// keep runs the helper until Close.
func (p *Process) keep() {
	defer close(p.ended)
	for {
		err := p.run()
		p.mu.Lock()
		closing := p.closing
		p.before = p.state
		for id, c := range p.waiting {
			c <- &saved{ID: id, Error: "the process that keeps recordings has ended"}
			delete(p.waiting, id)
		}
		p.mu.Unlock()
		if closing {
			return
		}
		p.log.Warn("the process that keeps recordings has ended, and is started again", zap.Error(err),
			zap.Duration("after", restartAfter))
		time.Sleep(restartAfter)
	}
}

// run runs one process to its end.
func (p *Process) run() error {
	cmd := exec.Command(p.argv[0], append(p.argv[1:], HelperArgument)...) //nolint:noctx // it ends when its input does
	if p.name != nil {
		p.name(cmd)
	}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the daemon, which tells it to end
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the process that keeps recordings: %w", err)
	}
	if err := json.NewEncoder(in).Encode(order{Config: &p.cfg}); err != nil {
		return errors.Join(err, cmd.Wait())
	}
	p.mu.Lock()
	p.orders = in
	closing := p.closing
	p.mu.Unlock()
	if closing {
		_ = in.Close()
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(make([]byte, 4096), maxLine)
	for lines.Scan() {
		var w word
		if json.Unmarshal(lines.Bytes(), &w) == nil {
			p.hear(&w)
		}
	}
	p.mu.Lock()
	p.orders = nil
	p.mu.Unlock()
	return cmd.Wait()
}

func (p *Process) hear(w *word) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.State != nil {
		p.state = plus(*w.State, p.before)
	}
	if w.Facts != nil && p.facts != nil {
		p.facts(*w.Facts)
	}
	if w.Saved != nil {
		if c := p.waiting[w.Saved.ID]; c != nil {
			c <- w.Saved
			delete(p.waiting, w.Saved.ID)
		}
	}
}

// plus adds the counts of an earlier process that are not in the journal.
func plus(s, before State) State {
	s.UploadFailed += before.UploadFailed
	s.Flights += before.Flights
	s.FlightsOmitted += before.FlightsOmitted
	return s
}

// State returns what the helper has told.
func (p *Process) State() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

// Save has what the daemon remembers of a target written to the disk, or of all targets where pid is 0.
func (p *Process) Save(ctx context.Context, pid uint32, reason string) ([]string, error) {
	p.mu.Lock()
	if p.orders == nil {
		p.mu.Unlock()
		return nil, clierror.New(clierror.General, "try again in a few seconds",
			errors.New("the process that keeps recordings is not there"))
	}
	p.next++
	id, answer := p.next, make(chan *saved, 1)
	p.waiting[id] = answer
	err := json.NewEncoder(p.orders).Encode(order{Save: &save{ID: id, PID: pid, Reason: reason}})
	p.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("asking the process that keeps recordings: %w", err)
	}
	select {
	case s := <-answer:
		if s.Error != "" {
			return s.Paths, clierror.New(clierror.General, "see the daemon's log", errors.New(s.Error))
		}
		return s.Paths, nil
	case <-ctx.Done():
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.waiting, id)
		return nil, ctx.Err()
	}
}

// Close has the helper finish what it has begun, and returns when it has, or after a bounded time.
func (p *Process) Close() {
	p.mu.Lock()
	p.closing = true
	if p.orders != nil {
		_ = p.orders.Close()
	}
	p.mu.Unlock()
	select {
	case <-p.ended:
	case <-time.After(finishTime + time.Second):
		p.log.Warn("the process that keeps recordings takes long to end: what it has not written is lost")
	}
}
