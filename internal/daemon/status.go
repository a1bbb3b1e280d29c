package daemon

import (
	"fmt"
	"os"
	"runtime/metrics"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/procfile"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/version"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// Status returns the state of the daemon and its targets.
func (d *Daemon) Status() api.Status {
	now := d.clock()
	s := api.Status{
		Version: version.String(), PID: os.Getpid(), Uptime: since(now, d.started).Seconds(),
		Targets: d.targets(now), Sources: d.sourceStates(), Libraries: nonNil(d.follower.libraries()),
		Rings: api.Rings{
			Bytes:  d.rings.Bytes(),
			Events: d.drainer.events.Load(),
			Calls:  d.drainer.calls.Load(),
			Losses: []loss.Loss{},
		},
		Recorder: d.recorderState(now),
		Self:     d.self(),
	}
	s.Overhead = d.overheads(now)
	if d.activity != nil {
		s.Agents = d.activity.Agents()
	}
	for _, g := range d.evidence.sensing {
		s.Sensors = append(s.Sensors, g.Latest()...)
	}
	for _, g := range d.evidence.drivers {
		s.Xids = append(s.Xids, g.XidCounts()...)
	}
	s.Losses = nonNil(ordered(append(d.history.total(now), d.follower.unprobedLosses(now)...)))
	for _, l := range s.Losses {
		if l.CPU != 0 {
			s.Rings.Losses = append(s.Rings.Losses, l)
		}
	}
	attribute(s.Losses, s.Targets)
	s.Discovery, s.Kept = d.discovery.state(), d.kept()
	s.Warnings, s.WarningsOmitted = d.parts.Warnings.state()
	return s
}

// attribute assigns to each target the losses that concern only its processes.
func attribute(losses []loss.Loss, targets []api.Target) {
	of := map[uint32]int{}
	for i, t := range targets {
		for _, p := range t.Processes {
			of[p.PID] = i
		}
	}
	for _, l := range losses {
		if i, known := of[l.PID]; known && l.PID != 0 {
			targets[i].Losses = append(targets[i].Losses, l)
		}
	}
}

// nonNil replaces nil by an empty list, for JSON.
func nonNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

func (d *Daemon) recorderState(now uint64) api.Recorder {
	st := d.recorder.Stats()
	r := api.Recorder{
		Budget: st.Budget, Used: st.Used, Keep: d.opts.Keep.Seconds(),
		Events: st.Events, Overwritten: st.Overwritten, Since: st.Since,
	}
	first := max(st.Since, d.follower.first())
	if first > 0 {
		r.Reach = min(since(now, first), d.opts.Keep).Seconds()
	}
	return r
}

func (d *Daemon) targets(now uint64) []api.Target {
	out := []api.Target{}
	for _, pid := range d.follower.pids() {
		if v, ok := d.follower.view(pid); ok {
			if t, ok := describeTarget(v, now); ok {
				d.discovery.describe(&t, &v)
				out = append(out, t)
			}
		}
	}
	return out
}

// describeTarget returns false for a target without any process so far.
func describeTarget(v view, now uint64) (api.Target, bool) {
	processes := v.processes(now)
	t := api.Target{PID: v.pid, Processes: processes}
	for _, p := range processes {
		if p.PID == v.pid && p.Parent == 0 {
			t.NSPID, t.UID, t.Comm, t.Cmdline = p.NSPID, p.UID, p.Comm, p.Cmdline
			t.State, t.Detail = stateOf(v, p, now)
		}
	}
	t.Owner, t.Others = v.owner()
	if v.since > 0 {
		end := now
		if v.ended > 0 {
			end = v.ended
		}
		t.Watched = since(end, v.since).Seconds()
	}
	return t, t.State != ""
}

// owner returns the owner of a target and its processes that belong to others.
func (v *view) owner() (uid uint32, others map[uint32]bool) {
	others = map[uint32]bool{}
	for _, e := range v.entries {
		if e.process.PID == v.pid && e.process.Parent == 0 {
			uid = e.process.Owner
		}
	}
	for _, e := range v.entries {
		if e.process.Owner != uid {
			others[e.process.PID] = true
		}
	}
	return uid, others
}

func stateOf(v view, main recording.Process, now uint64) (api.TargetState, string) {
	if v.ended > 0 {
		return api.Exited, fmt.Sprintf("%s %s ago",
			howEnded(main.ExitCode), since(now, v.ended).Round(100*time.Millisecond))
	}
	if v.released {
		return api.Released, "it is not recorded any more: the daemon was asked to release it"
	}
	if v.since == 0 {
		return api.Attaching, "what it has mapped is being probed"
	}
	refused := ""
	for _, l := range v.libraries {
		if l.Probed > 0 {
			return api.Watching, ""
		}
		if l.Error != "" {
			refused = fmt.Sprintf("%s: %s", l.Path, l.Error)
		}
	}
	if refused != "" {
		return api.Waiting, refused
	}
	return api.Waiting, "no CUDA library is mapped yet"
}

// howEnded describes an exit code as wait(2) returns it.
func howEnded(code int32) string {
	ws := unix.WaitStatus(code)
	if ws.Signaled() {
		return "killed by " + unix.SignalName(ws.Signal())
	}
	return "exited with code " + strconv.Itoa(ws.ExitStatus())
}

// sourceStates returns the state of every source, the watcher last.
func (d *Daemon) sourceStates() []recording.Source {
	out := make([]recording.Source, 0, len(d.sources)+1)
	for _, s := range d.sources {
		out = append(out, s.State())
	}
	return append(out, d.watcher.State())
}

// readLosses collects the loss counters of all parts.
func (d *Daemon) readLosses() ([]loss.Loss, error) {
	out, err := d.rings.Losses()
	out = append(out, d.watcher.Losses()...)
	for _, s := range d.sources {
		out = append(out, s.Losses()...)
	}
	for _, l := range d.recorder.Losses() {
		if l.Reason != loss.Overwritten { // Snapshot.Losses says what is missing in a window
			out = append(out, l)
		}
	}
	if n := d.drainer.faults.Load(); n > 0 {
		out = append(out, loss.Loss{Reason: loss.ArgumentFault, Count: n})
	}
	return out, err
}

// pids returns the targets in the order of their addition.
func (f *follower) pids() []uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]uint32, 0, len(f.roots))
	for _, r := range f.roots {
		out = append(out, r.pid)
	}
	return out
}

// first returns when the first target was followed, in ns; 0: none yet.
func (f *follower) first() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := uint64(0)
	for _, r := range f.roots {
		if r.since > 0 && (first == 0 || r.since < first) {
			first = r.since
		}
	}
	return first
}

func (f *follower) unprobedLosses(now uint64) []loss.Loss {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []loss.Loss
	for _, r := range f.roots {
		out = append(out, r.unprobedLosses(0, now)...)
		if r.dropped > 0 {
			out = append(out, loss.Loss{Reason: loss.LateProbe, Count: r.dropped, Where: "earlier"})
		}
	}
	return out
}

// lookup returns what is needed to authorize requests for target pid.
func (f *follower) lookup(pid uint32) (api.Owned, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.root(pid)
	if r == nil || r.main() == nil {
		return api.Owned{}, false
	}
	return api.Owned{UID: r.main().Owner, Exited: r.ended() > 0}, true
}

// owns reports whether uid owns a target.
func (f *follower) owns(uid uint32) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.roots {
		if p := r.main(); p != nil && p.Owner == uid {
			return true
		}
	}
	return false
}

// self returns the cost of the daemon with its helper processes, including ended ones (one injects an agent);
// unreadable values count 0.
func (d *Daemon) self() api.Self {
	out := cost(os.Getpid())
	out.Heap = liveHeap()
	var ended unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &ended); err == nil {
		out.CPU += time.Duration(ended.Utime.Nano() + ended.Stime.Nano()).Seconds()
	}
	for _, s := range d.sources {
		h, ok := s.(helped)
		if !ok {
			continue
		}
		for _, pid := range h.Helpers() {
			c := cost(pid)
			out.CPU, out.RSS = out.CPU+c.CPU, out.RSS+c.RSS
		}
	}
	return out
}

// liveHeap returns the bytes that the last garbage collection found in use (package runtime/metrics).
func liveHeap() int64 {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	if live[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return int64(live[0].Value.Uint64())
}

// cost returns the CPU time of a process with all its threads, including ended ones, and its resident memory.
func cost(pid int) api.Self {
	var out api.Self
	var t unix.Timespec
	if err := unix.ClockGettime(cpuClock(pid), &t); err == nil {
		out.CPU = time.Duration(t.Nano()).Seconds()
	}
	if statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid)); err == nil {
		m, _ := procfile.ParseStatm(statm)
		out.RSS = m.Resident
	}
	return out
}

// cpuClock returns the clock of a process's CPU time: make_process_cpuclock(pid,
// CPUCLOCK_SCHED) of include/linux/posix-timers.h.
func cpuClock(pid int) int32 {
	const scheduled = 2
	return int32(^pid)<<3 | scheduled
}

// Unavailable is a source that records nothing; State returns the error that kept the source of this name from being
// created.
func Unavailable(name string, why error) *NoSource { return &NoSource{name, why} }

// NoSource implements Source and does nothing.
type NoSource struct {
	name string
	why  error
}

// Name returns what the source is called in status and reports.
func (n *NoSource) Name() string { return n.name }

// Follow does nothing.
func (*NoSource) Follow(*proc.Process) error { return nil }

// Forget does nothing.
func (*NoSource) Forget(*proc.Process) {}

// State returns why nothing is recorded.
func (n *NoSource) State() recording.Source {
	return recording.Source{Name: n.name, State: "unavailable", Detail: n.why.Error()}
}

// Losses returns none: State has the reason.
func (*NoSource) Losses() []loss.Loss { return nil }

// Close does nothing.
func (*NoSource) Close() error { return nil }
