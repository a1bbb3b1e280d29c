// Package discover finds the processes that use a GPU, so that a daemon watches them without being told their pids, and
// says where they run: container, pod, GPU, role.
package discover

import (
	"context"
	"maps"
	"os/user"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/capture/proc"
)

const (
	// settleTime is how long a process is left alone after it has mapped the driver's library: programs that end within
	// it, such as a check whether there is a GPU, are not worth a look.
	settleTime = 150 * time.Millisecond
	// scanInterval is how often all processes are looked at for what went unseen; longer where that takes longer than
	// scanShare of the time.
	scanInterval = 10 * time.Second
	scanPolled   = time.Second // where new mappings are not told of
	scanShare    = 0.005       // of a core
	// maxAtOnce is how many are watched before it is looked what they cost.
	maxAtOnce = 8
	// maxPending bounds the processes that wait for their turn.
	maxPending = 4096
	// againAfter is how long it takes until a process that was refused, or could not be watched, is looked at again: it
	// may run another program, and there may be room.
	againAfter = 30 * time.Second
	// maxRefused bounds what is remembered of processes that were refused, and maxPlaces of where processes run.
	maxRefused = 4096
	maxPlaces  = 512
)

// Options are the settings of a Discoverer.
type Options struct {
	Rules Rules
	Log   *zap.Logger
	// Polled is set if new mappings are not reported: all processes are looked at more often then.
	Polled bool
	// Known reports whether a process is watched already, or was and is not to be any more.
	Known func(pid uint32) bool
	// Watch makes a process, with its children, a target. It returns before it is followed.
	Watch func(pid uint32) error
	// Spent returns the CPU time of this program and of all processes that work for it, since its start.
	Spent func() time.Duration
	// Pods completes places; nil: pods are known only from what the node shows.
	Pods *Pods
	// OwnPod is the uid of the pod that this process runs in; "" outside of Kubernetes.
	OwnPod string
	// LogDir is where the kubelet links logs of containers; "" is containerLogs.
	LogDir string
}

// Counts is what a Discoverer did since its start.
type Counts struct {
	Watched uint64 `json:"watched"` // programs that became targets
	Refused uint64 `json:"refused"` // that rules left out
	Skipped uint64 `json:"skipped"` // that had ended before it was their turn
	Failed  uint64 `json:"failed"`  // that could not be watched
	Hidden  uint64 `json:"hidden"`  // processes that could not be looked into, at the last look
	Pending uint64 `json:"pending"` // that wait for their turn
}

// Discoverer finds processes and has them watched.
type Discoverer struct {
	opts    Options
	log     *zap.Logger
	pending map[uint32]time.Time // since when; in the loop's hands
	refused map[proc.ID]refusal
	allowed allowance

	mu     sync.Mutex
	counts Counts
	places map[proc.ID]Place
	users  map[uint32]string // names by uid
}

// refusal describes why a process is not watched, and until when that holds.
type refusal struct {
	why   string
	until time.Time
}

// New makes a Discoverer, which does nothing before Run.
func New(o Options) *Discoverer {
	if o.LogDir == "" {
		o.LogDir = containerLogs
	}
	return &Discoverer{
		opts: o, log: o.Log, pending: map[uint32]time.Time{},
		refused: map[proc.ID]refusal{}, places: map[proc.ID]Place{},
		users: map[uint32]string{},
	}
}

// Counts returns what was done so far.
func (d *Discoverer) Counts() Counts {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counts
}

func (d *Discoverer) count(f func(c *Counts)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(&d.counts)
}

// Run finds processes until ctx is done. found tells of those that have just begun to use a GPU; 0 asks for a look at
// all. It may be nil.
func (d *Discoverer) Run(ctx context.Context, found <-chan uint32) {
	d.allowed = newAllowance(time.Now(), d.opts.Spent())
	scan := time.NewTimer(0)
	defer scan.Stop()
	tick := time.NewTicker(settleTime / 3)
	defer tick.Stop()
	tick.Stop()
	ticking := false
	for {
		if wants := len(d.pending) > 0; wants != ticking { // no pending: nothing to wake up for
			if ticking = wants; wants {
				tick.Reset(settleTime / 3)
			} else {
				tick.Stop()
			}
		}
		select {
		case <-ctx.Done():
			return
		case pid := <-found:
			if pid == 0 {
				scan.Reset(settleTime)
				continue
			}
			d.wait(pid, time.Now())
		case now := <-tick.C:
			d.turn(now)
		case <-scan.C:
			scan.Reset(d.scan(ctx))
		}
	}
}

// wait puts a process among those that wait for their turn.
func (d *Discoverer) wait(pid uint32, since time.Time) {
	if _, waits := d.pending[pid]; !waits && len(d.pending) < maxPending {
		d.pending[pid] = since
	}
}

// scan looks at all processes, and returns when to do so again.
func (d *Discoverer) scan(ctx context.Context) time.Duration {
	var users []proc.User
	var hidden int
	var err error
	cost := proc.CPUTime(func() { users, hidden, err = proc.Users(ctx) })
	if err != nil {
		d.log.Warn("processes that use a GPU are not found", zap.Error(err))
		return scanInterval
	}
	d.count(func(c *Counts) { c.Hidden = uint64(hidden) })
	now := time.Now()
	for _, u := range users {
		if !d.opts.Known(u.PID) && now.After(d.refused[u.ID()].until) {
			d.wait(u.PID, now.Add(-settleTime))
		}
	}
	d.turn(now)
	d.forget(users)
	interval := scanInterval
	if d.opts.Polled {
		interval = scanPolled
	}
	return max(interval, time.Duration(float64(cost)/scanShare))
}

// forget drops what is known of processes that are gone.
func (d *Discoverer) forget(users []proc.User) {
	alive := map[proc.ID]bool{}
	for i := range users {
		alive[users[i].ID()] = true
	}
	maps.DeleteFunc(d.refused, func(id proc.ID, _ refusal) bool { return !alive[id] })
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.places, func(id proc.ID, _ Place) bool { return !alive[id] })
}

// turn has those watched whose turn it is.
func (d *Discoverer) turn(now time.Time) {
	d.allowed.pass(now, d.opts.Spent())
	pids := make([]uint32, 0, len(d.pending))
	for pid, since := range d.pending {
		if now.Sub(since) >= settleTime {
			pids = append(pids, pid)
		}
	}
	slices.SortFunc(pids, func(a, b uint32) int { return d.pending[a].Compare(d.pending[b]) })
	watched := 0
	for _, pid := range pids {
		left := watched < maxAtOnce && d.allowed.left()
		if !left && alive(pid) {
			continue
		}
		delete(d.pending, pid)
		if !left {
			d.count(func(c *Counts) { c.Skipped++ })
			continue
		}
		if d.consider(pid) {
			watched++
			d.allowed.take()
		}
	}
	d.count(func(c *Counts) { c.Pending = uint64(len(d.pending)) })
}

// alive reports whether there is a process that is no zombie.
func alive(pid uint32) bool {
	p, err := proc.Describe(int(pid))
	if err != nil {
		return false
	}
	_ = p.Close()
	return true
}

// consider has a process watched if it uses a GPU and rules let it, and reports whether that was tried.
func (d *Discoverer) consider(pid uint32) bool {
	if d.opts.Known(pid) {
		return false
	}
	u, uses, err := proc.UserOf(pid)
	if err != nil {
		d.count(func(c *Counts) { c.Skipped++ })
		return false
	}
	if !uses {
		return false
	}
	top := proc.Top(pid)
	if top != pid && d.opts.Known(top) {
		return false // the target's other processes are about to be followed
	}
	if why := d.refuse(&u, top); why != "" {
		if d.note(&u, why) {
			d.log.Debug("a process that uses a GPU is left alone", zap.Uint32("pid", u.PID),
				zap.String("comm", u.Comm), zap.String("why", why))
			d.count(func(c *Counts) { c.Refused++ })
		}
		return false
	}
	if err := d.opts.Watch(top); err != nil {
		if d.note(&u, err.Error()) {
			d.count(func(c *Counts) { c.Failed++ })
			d.log.Warn("a process that uses a GPU is not watched; it is tried again", zap.Uint32("pid", top),
				zap.String("comm", u.Comm), zap.Error(err))
		}
		return true
	}
	d.count(func(c *Counts) { c.Watched++ })
	d.log.Info("found a process that uses a GPU", zap.Uint32("pid", top), zap.Uint32("using", pid),
		zap.String("comm", u.Comm))
	return true
}

// note remembers that a process is not watched, and reports whether that is news.
func (d *Discoverer) note(u *proc.User, why string) bool {
	if len(d.refused) >= maxRefused {
		clear(d.refused)
	}
	news := d.refused[u.ID()].why != why
	d.refused[u.ID()] = refusal{why, time.Now().Add(againAfter)}
	return news
}

// monitors are programs that open GPUs to look at them, or to draw: there is no inference in them.
var monitors = []string{
	"nvidia-smi", "nvidia-persiste", "nv-hostengine", "dcgm-exporter", "nvidia-device-p", "nvtop", "nvidia-container",
	"Xorg", "Xwayland", "gnome-shell", "inferscoped",
}

// refuse reports why a process under a top is not to be watched; "" where it is.
func (d *Discoverer) refuse(u *proc.User, top uint32) string {
	if slices.Contains(monitors, u.Comm) {
		return u.Comm + " only looks at GPUs"
	}
	subjects := []subject{d.subject(u.PID, u.UID, u.Comm, u.Cmdline)}
	if top != u.PID {
		if p, err := proc.Describe(int(top)); err == nil {
			_ = p.Close()
			subjects = append(subjects, d.subject(p.PID, p.UID, p.Comm, p.Cmdline))
		}
	}
	return d.opts.Rules.Refuse(subjects...)
}

func (d *Discoverer) subject(pid, uid uint32, comm, cmdline string) subject {
	s := subject{Name: comm, Cmdline: cmdline, User: d.user(uid), UID: strconv.FormatUint(uint64(uid), 10)}
	place := d.place(pid)
	s.Cgroup, s.Labels, s.PodUID = place.Cgroup, place.Labels, place.PodUID
	if place.Pod != "" {
		s.Pod = place.Namespace + "/" + place.Pod
	}
	return s
}

// user returns the name of a user id, as this system knows it, else the number.
func (d *Discoverer) user(uid uint32) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	name, known := d.users[uid]
	if !known {
		name = strconv.FormatUint(uint64(uid), 10)
		if u, err := user.LookupId(name); err == nil {
			name = u.Username
		}
		if len(d.users) < maxRefused {
			d.users[uid] = name
		}
	}
	return name
}

func (d *Discoverer) place(pid uint32) Place {
	p := placeOf(proc.Cgroup(pid))
	p.beside(d.opts.OwnPod)
	if p.Container != "" && d.opts.Pods != nil {
		d.opts.Pods.complete(&p)
	}
	p.fromLogs(d.opts.LogDir)
	return p
}

// PlaceOf returns where a process runs. What does not change while it runs is read once.
func (d *Discoverer) PlaceOf(id proc.ID) Place {
	d.mu.Lock()
	p, known := d.places[id]
	d.mu.Unlock()
	if known {
		return p
	}
	p = d.place(id.PID)
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.places) >= maxPlaces {
		clear(d.places)
	}
	if p.Container == "" || p.Pod != "" { // the name of a pod may be known a little later
		d.places[id] = p
	}
	return p
}

// Candidate is a process that uses a GPU.
type Candidate struct {
	PID     uint32   `json:"pid"`
	Top     uint32   `json:"top"` // the process that would be the target
	UID     uint32   `json:"uid"`
	Comm    string   `json:"comm"`
	Cmdline string   `json:"cmdline"`
	Library string   `json:"library,omitempty"` // of the driver, as the process sees it
	GPUs    []string `json:"gpus,omitempty"`    // device files that it has open
	Role    string   `json:"role,omitempty"`
	Refused string   `json:"refused,omitempty"` // why discovery leaves it alone
	Place
}

// Candidates returns the processes that use a GPU now, whether they are watched or not, and how many could not be
// looked into.
func (d *Discoverer) Candidates(ctx context.Context) (out []Candidate, hidden int, err error) {
	users, hidden, err := proc.Users(ctx)
	if err != nil {
		return nil, 0, err
	}
	for i := range users {
		u := &users[i]
		c := Candidate{
			PID: u.PID, Top: proc.Top(u.PID), UID: u.UID, Comm: u.Comm,
			Cmdline: u.Cmdline, Library: u.Library, GPUs: u.Devices,
			Role: Role(u.Comm, u.Cmdline), Place: d.PlaceOf(u.ID()),
		}
		c.Refused = d.refuse(u, c.Top)
		out = append(out, c)
	}
	return out, hidden, nil
}
