package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// Triggers say when what the daemon remembers of a target is saved without being asked for.
type Triggers struct {
	Iteration Threshold     `json:"iteration"` // median latency of iterations over so many ns
	GPUBusy   Threshold     `json:"gpu_busy"`  // share of the observed time in which GPUs worked, below this
	Errors    Threshold     `json:"errors"`    // share of CUDA calls that returned an error, above this
	Memory    bool          `json:"memory"`    // an allocation of a framework failed for want of memory
	Exit      bool          `json:"exit"`      // it crashed, was killed, or ended with an error
	Cooldown  time.Duration `json:"cooldown"`  // after one, of the same target
	PerDay    int           `json:"per_day"`   // of all targets together
}

// Threshold is a value that must hold for a while; Value 0: there is none.
type Threshold struct {
	Value float64       `json:"value"`
	For   time.Duration `json:"for"`
}

// think reports whether triggers need to know what a target does.
func (t *Triggers) think() bool {
	return t.Iteration.Value > 0 || t.GPUBusy.Value > 0 || t.Errors.Value > 0
}

const hintTrigger = "write it as VALUE for TIME: trigger_iteration: 200ms for 30s; trigger_gpu_busy: 20% for 1m; trigger_errors: 1% for 10s"

// ParseThreshold reads "200ms for 30s", or with percent "20% for 1m"; "" is none.
func ParseThreshold(text string, percent bool) (Threshold, error) {
	if strings.TrimSpace(text) == "" {
		return Threshold{}, nil
	}
	bad := func(err error) (Threshold, error) {
		return Threshold{}, clierror.New(clierror.Usage, hintTrigger, fmt.Errorf("%.128q: %w", text, err))
	}
	value, length, ok := strings.Cut(text, " for ")
	if !ok {
		return bad(errors.New("it does not say for how long"))
	}
	var t Threshold
	var err error
	if t.For, err = time.ParseDuration(strings.TrimSpace(length)); err == nil && (t.For < 0 || t.For > 24*time.Hour) {
		err = errors.New("the time is out of range")
	}
	if err != nil {
		return bad(err)
	}
	if value = strings.TrimSpace(value); percent {
		number, ok := strings.CutSuffix(value, "%")
		t.Value, err = strconv.ParseFloat(number, 64)
		if t.Value /= 100; err == nil && (!ok || !(t.Value > 0 && t.Value <= 1)) {
			err = errors.New("it is not a percentage above 0")
		}
	} else {
		var d time.Duration
		d, err = time.ParseDuration(value)
		if t.Value = float64(d); err == nil && d <= 0 {
			err = errors.New("it is no time above 0")
		}
	}
	if err != nil {
		return bad(err)
	}
	return t, nil
}

// Facts are what a stretch of a recording says.
type Facts = api.Facts

// triggerState is the state of the triggers of one target.
type triggerState struct {
	slow, idle, failing time.Duration // for how long it is so
	oomKills            int64         // of the control group, when it was last looked at; -1: not known
	quiet               time.Time     // nothing is saved before
}

// weigh takes the facts of a stretch of this length, and returns why the target is to be saved; "" where it is not.
func (s *triggerState) weigh(t *Triggers, f *Facts, length time.Duration) string {
	hold := func(sum *time.Duration, th Threshold, known, holds bool) bool {
		switch {
		case th.Value == 0, known && !holds:
			*sum = 0
		case known:
			*sum += length
		}
		return th.Value > 0 && holds && *sum >= th.For
	}
	busy := float64(f.Busy) / float64(max(f.Watched, 1))
	failing := float64(f.Errors) / float64(max(f.Calls, 1))
	switch {
	case hold(&s.slow, t.Iteration, f.Iterations > 0, float64(f.P50) > t.Iteration.Value):
		return "slow"
	case hold(&s.idle, t.GPUBusy, f.Watched > 0, busy < t.GPUBusy.Value):
		return "gpu-idle"
	case hold(&s.failing, t.Errors, f.Calls > 0, failing > t.Errors.Value):
		return "errors"
	}
	return ""
}

// outOfMemory reports whether an allocation has failed since the last look. GPU memory that the driver refused to a
// process with PyTorch does not count: its allocator frees what it has cached, asks again, and says itself if that fails
// too.
func (s *session) outOfMemory(rec *recording.Recording) bool {
	before := s.exhausted
	framework := map[uint32]bool{} // by process
	for i := range rec.Events {
		e := &rec.Events[i]
		if t := event.MemoryDevice(e.Func).Type(); e.Kind == event.Memory && (t == event.CUDAMemory || t == event.HIPMemory) {
			framework[e.PID] = true
		}
	}
	for i := range rec.Events {
		e := &rec.Events[i]
		if e.Kind == event.OutOfMemory && !(event.MemoryDevice(e.Func).Type() == event.DriverMemory && framework[e.PID]) {
			s.exhausted = max(s.exhausted, e.TS)
		}
	}
	return s.exhausted > before
}

// ending reports how a target has ended, where that is worth saving: "crash", "killed", "oom" or "error".
func ending(t *api.Target, oomBefore, oomNow int64) string {
	for i := range t.Processes {
		if p := &t.Processes[i]; p.PID == t.PID && p.Parent == 0 && p.Died != 0 {
			return endingOf(p, oomBefore, oomNow)
		}
	}
	return ""
}

// endingOf reports how a process has ended, where that is worth saving.
func endingOf(p *recording.Process, oomBefore, oomNow int64) string {
	status := unix.WaitStatus(p.ExitCode)
	switch {
	case status.Signaled() && status.Signal() == unix.SIGKILL && oomBefore >= 0 && oomNow > oomBefore:
		return "oom"
	case status.Signaled() && status.Signal() == unix.SIGKILL:
		return "killed"
	case status.Signaled() && !slices.Contains(asked, status.Signal()):
		return "crash"
	case status.Exited() && status.ExitStatus() != 0 && !slices.Contains(asked, unix.Signal(status.ExitStatus()-128)):
		return "error"
	}
	return ""
}

// asked are the signals by which programs are asked to end; shells make exit code 128 and more of them.
var asked = []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP}

// lostChild reports how a child of a target that runs on has crashed since the last look: an engine or a worker of a
// server. That children are killed is usual: pools end so.
func (s *session) lostChild() string {
	why, last := "", s.deaths
	for i := range s.target.Processes {
		p := &s.target.Processes[i]
		if p.Died <= s.deaths {
			continue
		}
		last = max(last, p.Died)
		now := oomKills(s.target.Cgroup)
		if how := endingOf(p, s.triggers.oomKills, now); p.Parent != 0 && (how == "crash" || how == "oom") {
			why = how
		}
		s.triggers.oomKills = now
	}
	s.deaths = last
	return why
}

const cgroupRoot = "/sys/fs/cgroup"

// oomKills returns how many processes of a control group the kernel has killed for want of memory; -1 where that cannot
// be read.
func oomKills(cgroup string) int64 {
	if cgroup == "" || !filepath.IsLocal(strings.TrimPrefix(cgroup, "/")) {
		return -1
	}
	text, err := os.ReadFile(filepath.Join(cgroupRoot, cgroup, "memory.events"))
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] == "oom_kill" {
			if n, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
				return n
			}
		}
	}
	return -1
}

// fire saves what is remembered of a target, unless that was done a short while ago or often enough today.
func (w *Worker) fire(ctx context.Context, s *session, why string) {
	now := time.Now()
	t := w.cfg.Triggers
	if now.Before(s.triggers.quiet) {
		return
	}
	if day := now.UTC().Format(time.DateOnly); day != w.day {
		w.day, w.fired = day, 0
	}
	if w.fired >= t.PerDay {
		w.count(func(k *State) { k.FlightsOmitted++ })
		return
	}
	w.fired++
	s.triggers.quiet = now.Add(t.Cooldown)
	path, err := w.saveOne(ctx, &s.target, why)
	if err != nil {
		w.fail("saving what pid "+strconv.FormatUint(uint64(s.target.PID), 10)+" did before a trigger", err)
		return
	}
	if path == "" {
		return
	}
	w.count(func(k *State) { k.Flights++ })
	w.log.Info("a trigger has saved what is remembered of a target", zap.Uint32("pid", s.target.PID),
		zap.String("why", why), zap.String("recording", path))
}
