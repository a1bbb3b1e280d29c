package daemon

import (
	"context"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/capture/discover"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/daemon/api"
)

// Discover configures a daemon that finds its targets itself.
type Discover struct {
	Rules discover.Rules
	Admit func(pid uint32) error // says why a process is not to be watched; nil: all are
}

// expireEvery is the interval of the search for targets whose recordings have expired.
const expireEvery = time.Second

// devicesFor is how long the list of a process's open device files is cached.
const devicesFor = 10 * time.Second

// discovery finds targets, forgets those that ended long ago, and determines where targets run.
type discovery struct {
	opts   *Discover // nil: nothing is looked for
	daemon *Daemon
	finder *discover.Discoverer

	listing sync.Mutex // one look at a time: any user may ask for one
	listed  []api.Candidate
	until   time.Time

	mu      sync.Mutex
	devices map[proc.ID]devices
}

type devices struct {
	files []string
	until time.Time
}

func newDiscovery(opts *Discover, d *Daemon) *discovery {
	s := &discovery{opts: opts, daemon: d, devices: map[proc.ID]devices{}}
	o := discover.Options{
		Log:    d.log,
		Known:  d.follower.knows,
		Watch:  s.watch,
		Spent:  func() time.Duration { return time.Duration(d.self().CPU * float64(time.Second)) },
		Pods:   d.parts.Pods,
		OwnPod: os.Getenv("POD_UID"),
	}
	if opts != nil {
		o.Rules = opts.Rules
	}
	o.Polled = d.watcher.Found() == nil
	s.finder = discover.New(o)
	return s
}

// run finds targets until ctx is done.
func (s *discovery) run(ctx context.Context) {
	if s.opts == nil {
		return
	}
	go s.finder.Run(ctx, s.daemon.watcher.Found())
	ticker := time.NewTicker(expireEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.daemon.follower.expire(s.daemon.clock(), s.daemon.opts.Keep)
		}
	}
}

func (s *discovery) watch(pid uint32) error {
	if s.opts.Admit != nil {
		if err := s.opts.Admit(pid); err != nil {
			return err
		}
	}
	if err := s.daemon.follower.include(api.WatchRequest{PID: pid, AnyOwner: true, Found: true}); err != nil {
		return err
	}
	if p, err := proc.Describe(int(pid)); err == nil {
		_ = p.Close()
		s.daemon.follower.keepPlace(pid, placeOf(s.finder.PlaceOf(p.ID())))
	}
	return nil
}

// state returns the API's Discovery; nil if discovery is off.
func (s *discovery) state() *api.Discovery {
	if s.opts == nil {
		return nil
	}
	c := api.Discovery(s.finder.Counts())
	return &c
}

// describe adds the place and the roles of a target's processes.
func (s *discovery) describe(t *api.Target, v *view) {
	t.Found = v.found
	t.Roles = map[uint32]string{}
	for i := range v.entries {
		p := v.entries[i].process
		if p.PID == v.pid && p.Parent == 0 && p.Died == 0 {
			t.Place = placeOf(s.finder.PlaceOf(p.ID()))
		}
		if p.Died != 0 {
			continue
		}
		if role := discover.Role(p.Comm, p.Cmdline); role != "" {
			t.Roles[p.PID] = role
		}
		t.GPUs = append(t.GPUs, s.devicesOf(p.ID())...)
	}
	slices.Sort(t.GPUs)
	t.GPUs = slices.Compact(t.GPUs)
	if v.place != nil && t.Place == (api.Place{}) { // it has ended
		t.Place = *v.place
	}
	s.daemon.follower.keepPlace(v.pid, t.Place)
}

func placeOf(p discover.Place) api.Place {
	return api.Place{
		Cgroup: p.Cgroup, Container: p.Container, ContainerName: p.Name, Image: p.Image,
		Namespace: p.Namespace, Pod: p.Pod, PodUID: p.PodUID,
	}
}

// maxDeviceLists bounds the cache of device lists.
const maxDeviceLists = 512

func (s *discovery) devicesOf(id proc.ID) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	known, ok := s.devices[id]
	if !ok || now.After(known.until) {
		maps.DeleteFunc(s.devices, func(_ proc.ID, d devices) bool { return now.After(d.until) })
		if len(s.devices) >= maxDeviceLists {
			clear(s.devices)
		}
		known = devices{proc.Devices(id.PID), now.Add(devicesFor)}
		s.devices[id] = known
	}
	return known.files
}

// candidatesFor is how long a list of candidates is cached: making one reads all of /proc.
const candidatesFor = 2 * time.Second

// Candidates returns the processes that use a GPU.
func (d *Daemon) Candidates(ctx context.Context) ([]api.Candidate, error) {
	s := d.discovery
	s.listing.Lock()
	defer s.listing.Unlock()
	if time.Now().After(s.until) {
		found, hidden, err := s.finder.Candidates(ctx)
		if err != nil {
			return nil, err
		}
		if hidden > 0 {
			d.log.Debug("processes could not be looked into", zap.Int("processes", hidden))
		}
		s.listed, s.until = Candidates(found), time.Now().Add(candidatesFor)
	}
	out := slices.Clone(s.listed)
	for i := range out {
		out[i].Target = d.follower.targetOf(out[i].PID)
	}
	return out, nil
}

// Candidates converts processes that discovery found to the form of the API.
func Candidates(found []discover.Candidate) []api.Candidate {
	out := make([]api.Candidate, 0, len(found))
	for i := range found {
		c := &found[i]
		out = append(out, api.Candidate{
			PID: c.PID, Top: c.Top, UID: c.UID, Comm: c.Comm,
			Cmdline: c.Cmdline, Library: c.Library, GPUs: c.GPUs, Role: c.Role,
			Refused: c.Refused, Place: placeOf(c.Place),
		})
	}
	return out
}

// targetOf returns the target of a living process; 0 if none watches it.
func (f *follower) targetOf(pid uint32) uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.roots {
		for id, e := range r.procs {
			if id.PID == pid && e.process.Died == 0 && !r.released {
				return r.pid
			}
		}
	}
	return 0
}

// knows reports whether a living process belongs to a target, including a released one.
func (f *follower) knows(pid uint32) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.roots {
		if r.pid == pid && len(r.procs) == 0 {
			return true // asked for, and about to appear
		}
		for id, e := range r.procs {
			if id.PID == pid && e.process.Died == 0 {
				return true
			}
		}
	}
	return false
}

// expire withdraws targets that discovery found and that have no recording any more.
func (f *follower) expire(now uint64, keep time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range slices.Clone(f.roots) {
		if ended := r.ended(); r.found && len(r.procs) > 0 && ended > 0 && since(now, ended) > keep {
			f.withdraw(r)
		}
	}
}

// keepPlace stores where a target runs, for the time after its end.
func (f *follower) keepPlace(pid uint32, at api.Place) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.root(pid); r != nil && at != (api.Place{}) {
		r.place = &at
	}
}
