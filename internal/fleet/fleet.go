// Package fleet keeps what a daemon sees for longer than it remembers: recordings of a minute each in a directory,
// within a quota, and from there in an object store. It runs in a process of its own (inferscoped recorder-helper), a
// client of the daemon like any other, so that writing files costs the daemon neither memory nor time.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/recording"
)

// Config describes what a Worker does. It travels to its process as JSON.
type Config struct {
	Socket   string        `json:"socket"`  // of the daemon
	Dir      string        `json:"dir"`     // where recordings lie
	Quota    int64         `json:"quota"`   // bytes that they may take together
	Reserve  int64         `json:"reserve"` // bytes that stay free on the file system, whatever the quota
	MaxAge   time.Duration `json:"max_age"` // older ones are deleted
	Length   time.Duration `json:"length"`  // of a recording; 0: none are made, but on command
	Upload   *UploadConfig `json:"upload"`  // nil: nothing is uploaded
	Triggers Triggers      `json:"triggers"`
	Lines    bool          `json:"lines"`    // recordings have their events as JSON lines beside them
	Think    bool          `json:"think"`    // facts of each stretch are told to the daemon
	Interval time.Duration `json:"interval"` // how often a target's events are fetched: what a crash may lose
}

// Defaults of a Config.
const (
	DefaultQuota  = 2_000_000_000
	DefaultMaxAge = 7 * 24 * time.Hour
	DefaultLength = time.Minute
	// DefaultReserve is what is left to others on the disk.
	DefaultReserve = 500_000_000

	defaultInterval = 10 * time.Second
	lookEvery       = time.Second
	// margin is by how much a stretch reaches back into the one before it: what came late is in it then.
	margin = 2 * time.Second
	// fetchTime bounds how long a stretch may take to arrive, and finishTime how long the end of all may.
	fetchTime  = time.Minute
	finishTime = 8 * time.Second
)

// State is what a Worker did since its start.
type State = api.Kept

// Worker records all targets of a daemon.
type Worker struct {
	cfg    Config
	log    *zap.Logger
	client *api.Client
	shelf  *shelf
	open   map[uint32]*session
	ended  map[uint32]bool                  // targets that had ended at the last look
	looked bool                             // there was one
	killed uint64                           // processes that had been killed when this one began
	left   map[uint32]time.Time             // when recording of targets that are still known has ended
	report func(State)                      // called when state has changed
	upload *uploader                        // nil: nothing is uploaded
	lines  *liner                           // nil: no JSON lines are written
	think  func(*recording.Recording) Facts // nil: nothing is thought about stretches
	facts  func(Facts)                      // called with what was thought

	budget budget // of thinking

	day   string // today,
	fired int    // and how many triggers have fired

	mu    sync.Mutex
	state State
	last  State
}

// newWorker makes a Worker. report is called after each look.
func newWorker(cfg Config, log *zap.Logger, report func(State)) (*Worker, error) {
	if cfg.Interval == 0 {
		cfg.Interval = defaultInterval
		if cfg.Length > 0 {
			cfg.Interval = min(defaultInterval, cfg.Length)
		}
	}
	s, err := openShelf(cfg.Dir, cfg.Quota, cfg.Reserve, cfg.MaxAge)
	if err != nil {
		return nil, err
	}
	if err := s.lock(lockTime); err != nil {
		return nil, err
	}
	client, err := api.Dial(cfg.Socket)
	if err != nil {
		return nil, err
	}
	w := &Worker{
		cfg:    cfg,
		log:    log,
		client: client,
		shelf:  s,
		open:   map[uint32]*session{},
		ended:  map[uint32]bool{},
		left:   map[uint32]time.Time{},
		report: report,
	}
	if cfg.Upload != nil {
		if w.upload, err = newUploader(*cfg.Upload, s, log, w.count); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// Run records until ctx is done, and then finishes what it has begun.
func (w *Worker) Run(ctx context.Context) error {
	defer w.client.Close()
	w.killed = w.shelf.journal.counted().Killed
	w.shelf.journal.add(started, "")
	if n := w.shelf.recover(); n > 0 {
		w.log.Info("recordings that were cut off are kept as far as they go", zap.Int("recordings", n))
	}
	if w.upload != nil {
		uploads := make(chan struct{})
		uploading, stop := context.WithCancel(ctx)
		defer func() { stop(); <-uploads }()
		go func() {
			defer close(uploads)
			w.upload.run(uploading)
		}()
	}
	if w.lines != nil {
		lines := make(chan struct{})
		go func() {
			defer close(lines)
			w.lines.run(ctx)
		}()
		defer func() { <-lines }()
	}
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		w.look(ctx)
		select {
		case <-ctx.Done():
			bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTime)
			defer cancel()
			return w.finishAll(bye)
		case <-ticker.C:
		}
	}
}

// look does what is due.
func (w *Worker) look(ctx context.Context) {
	w.shelf.tidy(time.Now())
	if w.fetches() || w.cfg.Triggers.Exit {
		w.record(ctx)
	}
	w.tell()
}

// fetches reports whether it is to be known what targets do, not only how they end.
func (w *Worker) fetches() bool { return w.cfg.Length > 0 || w.think != nil || w.cfg.Triggers.Memory }

// SetThink gives the worker what finds out what a stretch says.
func (w *Worker) SetThink(think func(*recording.Recording) Facts) {
	if w.cfg.Think || w.cfg.Triggers.think() {
		w.think = think
	}
}

// count changes the state, which the uploader does, too.
func (w *Worker) count(f func(*State)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.state)
}

func (w *Worker) tell() {
	bytes, kept := w.shelf.size()
	c := w.shelf.journal.counted()
	w.mu.Lock()
	w.state.Bytes, w.state.Kept = bytes, kept
	w.state.Recordings, w.state.Uploaded, w.state.Deleted = c.Made, c.Uploaded, c.Deleted
	w.state.Lost, w.state.Failed, w.state.Killed = c.Lost, c.Failed, c.Killed
	now := w.state
	w.mu.Unlock()
	if w.report != nil && now != w.last {
		w.report(now)
		w.last = now
	}
}

// record fetches what is due of each target.
func (w *Worker) record(ctx context.Context) {
	targets, err := w.client.Targets(ctx)
	if err != nil {
		if ctx.Err() == nil {
			w.fail("asking for targets", err)
		}
		return
	}
	there := map[uint32]bool{}
	for i := range targets {
		t := &targets[i]
		there[t.PID] = true
		s := w.open[t.PID]
		running := t.State == api.Watching || t.State == api.Waiting && t.Watched > 0
		switch {
		case s == nil && running:
			s = &session{worker: w, target: *t, began: time.Now(), asked: w.since(t)}
			s.triggers.oomKills = oomKills(t.Cgroup)
			s.lostChild() // before it is watched here
			w.open[t.PID] = s
		case s == nil:
			if t.State == api.Exited && !w.ended[t.PID] && w.looked { // it came and went between two looks
				w.died(ctx, &session{worker: w, target: *t, triggers: triggerState{oomKills: -1}})
			}
		case !running:
			s.target = *t
			before := s.triggers.quiet
			s.end(ctx)
			delete(w.open, t.PID)
			w.left[t.PID] = time.Now()
			if t.State == api.Exited && s.triggers.quiet.Equal(before) { // else its end is saved
				w.died(ctx, s)
			}
		default:
			s.target = *t
			if why := s.lostChild(); why != "" && w.cfg.Triggers.Exit {
				w.fire(ctx, s, why)
			}
			s.due(ctx)
		}
	}
	clear(w.ended)
	for i := range targets {
		if targets[i].State == api.Exited {
			w.ended[targets[i].PID] = true
		}
	}
	w.looked = true
	maps.DeleteFunc(w.left, func(pid uint32, _ time.Time) bool { return !there[pid] })
	for pid, s := range w.open {
		if !there[pid] { // it has ended and was forgotten between two looks
			s.finish()
			delete(w.open, pid)
		}
	}
}

// since returns when a recording of a target is to begin: when the one before ended, else when the target came to be
// watched, which was before this process looked. After one that was killed, nobody knows what that one has recorded: it
// begins now.
func (w *Worker) since(t *api.Target) time.Time {
	now := time.Now()
	if !w.looked && w.shelf.journal.counted().Killed > w.killed {
		return now
	}
	at := now.Add(-time.Duration(t.Watched * float64(time.Second)))
	if left := w.left[t.PID]; left.After(at) {
		return left
	}
	return at
}

// died saves what is remembered of a target that has ended, where it did not end well. It does so once: another trigger
// a short while before does not keep it from that.
func (w *Worker) died(ctx context.Context, s *session) {
	why := ending(&s.target, s.triggers.oomKills, oomKills(s.target.Cgroup))
	if why != "" && w.cfg.Triggers.Exit {
		s.triggers.quiet = time.Time{}
		w.fire(ctx, s, why)
	}
}

func (w *Worker) finishAll(ctx context.Context) error {
	for pid, s := range w.open {
		s.end(ctx)
		delete(w.open, pid)
	}
	if w.lines != nil {
		w.lines.pass(ctx)
	}
	w.shelf.journal.add(stopped, "")
	w.tell()
	return nil
}

// fail counts what could not be done, and says so where it is news.
func (w *Worker) fail(what string, err error) {
	text, news := what+": "+err.Error(), false
	w.shelf.journal.add(failed, "")
	w.count(func(k *State) {
		news = k.Error != text
		k.Error = text
	})
	if news {
		w.log.Warn("recordings on the disk have a hole", zap.String("what", what), zap.Error(err))
	}
}

// session is the recording of one target that is being made.
type session struct {
	worker *Worker
	target api.Target
	began  time.Time // of the recording at hand
	asked  time.Time // when the stretch before was asked for
	writer *writer   // nil: nothing was written yet
	until  uint64    // ns, CLOCK_MONOTONIC: where the recording before ended

	thought  uint64 // ns: until when was thought about
	deaths   uint64 // ns: until when it is known which processes have ended
	triggers triggerState

	exhausted uint64 // ns: when an allocation failed last
}

// due fetches a stretch if it is time, and ends the recording if it is long enough.
func (s *session) due(ctx context.Context) {
	now := time.Now()
	if now.Sub(s.asked) < s.worker.cfg.Interval {
		return
	}
	if !s.worker.fetches() {
		return // it is only awaited how it ends
	}
	rec := s.fetch(ctx, now)
	if rec == nil {
		return
	}
	s.consider(ctx, rec)
	if now.Sub(s.began) < s.worker.cfg.Length {
		s.append(rec)
		return
	}
	// What comes late is still to come for the last moments: they begin the next recording, so that each event is in
	// one of them.
	cut := rec.Meta.To - min(rec.Meta.To-rec.Meta.From, uint64(margin))
	s.append(clip(rec, 0, cut))
	s.finish()
	s.until, s.began = cut, now
	s.append(clip(rec, cut, rec.Meta.To))
}

// consider finds out what a stretch says, and saves what is remembered where that is a trigger.
func (s *session) consider(ctx context.Context, rec *recording.Recording) {
	w := s.worker
	if w.cfg.Triggers.Memory && s.outOfMemory(rec) {
		w.fire(ctx, s, "gpu-memory")
	}
	if w.think == nil || !w.budget.may(time.Now()) {
		return
	}
	part := rec
	if s.thought > rec.Meta.From {
		part = clip(rec, s.thought, rec.Meta.To)
	}
	s.thought = rec.Meta.To
	if part.Meta.To <= part.Meta.From {
		return
	}
	began := spent()
	f := w.think(part)
	w.budget.spend(spent() - began)
	f.PID = s.target.PID
	if w.facts != nil {
		w.facts(f)
	}
	if why := s.triggers.weigh(&w.cfg.Triggers, &f, time.Duration(part.Meta.To-part.Meta.From)); why != "" {
		w.fire(ctx, s, why)
	}
}

// end fetches what is left, and finishes.
func (s *session) end(ctx context.Context) {
	if s.worker.fetches() {
		if rec := s.fetch(ctx, time.Now()); rec != nil {
			s.consider(ctx, rec)
			s.append(rec)
		}
	}
	s.finish()
}

// fetch returns what came since the stretch before, and as much of that as margin says; nil where it cannot be had.
func (s *session) fetch(ctx context.Context, now time.Time) *recording.Recording {
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	rec, err := s.worker.client.Recording(ctx, s.target.PID, api.Window{Last: now.Sub(s.asked) + margin})
	if err != nil {
		if !errors.Is(ctx.Err(), context.Canceled) {
			s.worker.fail(fmt.Sprintf("fetching what pid %d did", s.target.PID), err)
		}
		return nil
	}
	s.asked = now
	if s.until > rec.Meta.From {
		rec = clip(rec, s.until, rec.Meta.To)
	}
	return rec
}

func (s *session) append(rec *recording.Recording) {
	if rec.Meta.To <= rec.Meta.From || s.worker.cfg.Length == 0 {
		return
	}
	err := s.worker.shelf.room()
	if err == nil && s.writer == nil {
		s.writer, err = s.worker.shelf.create(name(&s.target, rec))
	}
	if err == nil {
		err = s.writer.append(rec)
	}
	if err != nil {
		s.worker.fail("writing a recording", err)
	}
}

// finish puts the recording into its place.
func (s *session) finish() {
	if s.writer == nil {
		return
	}
	w := s.writer
	s.writer = nil
	path, err := w.finish()
	if err != nil {
		s.worker.fail("finishing a recording", err)
		return
	}
	if path == "" {
		return // nothing happened in it
	}
	s.worker.count(func(k *State) { k.Error = "" })
}

// name returns what a recording is called: when it began, and of what.
func name(t *api.Target, rec *recording.Recording) string {
	at := time.Unix(0, rec.Meta.WallFrom).UTC()
	return fmt.Sprintf("%s-%d-%s", at.Format("20060102T150405.000Z"), t.PID, Safe(t.Comm))
}

// Safe returns a name with nothing in it that means something to file systems, stores or shells.
func Safe(name string) string {
	safe := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.' {
			return r
		}
		return '_'
	}, name)
	return strings.Trim(safe, ".")
}

// clip returns the part of a recording within [from, to) ns. What tells how things stood at its end stays.
func clip(rec *recording.Recording, from, to uint64) *recording.Recording {
	out := *rec
	if from > out.Meta.From {
		out.Meta.WallFrom += int64(from - out.Meta.From)
		out.Meta.From = from
	}
	out.Meta.To = min(out.Meta.To, to)
	out.Events = nil
	for i := range rec.Events {
		if e := &rec.Events[i]; e.TS >= from && e.TS < to || e.TS < from && isOpen(e) {
			out.Events = append(out.Events, *e)
		}
	}
	if rec.Meta.GPU != nil {
		g := *rec.Meta.GPU
		g.Windows = nil
		for _, window := range rec.Meta.GPU.Windows {
			if window.From = max(window.From, from); window.From < min(window.To, to) {
				window.To = min(window.To, to)
				g.Windows = append(g.Windows, window)
			}
		}
		out.Meta.GPU = &g
	}
	return &out
}

// Recordings returns the folders of finished recordings below a directory, the oldest first.
func Recordings(dir string) ([]string, error) {
	found, err := list(dir)
	if err != nil {
		return nil, err
	}
	out := make([]string, 0, len(found))
	for _, f := range found {
		out = append(out, filepath.Join(dir, f.name))
	}
	return out, nil
}
