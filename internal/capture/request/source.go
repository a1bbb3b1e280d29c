// Package request is the source of the HTTP requests that targets serve: when each was read, when the first and the
// last token of its answer were written, and how many tokens there were. The kernel shows it the bytes that targets
// read and write on such sockets (bpf/request.bpf.c); package http1 makes exchanges of them, and forgets the bytes.
// Text of prompts and answers is kept only where that was asked for, without what rules match.
package request

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// Bounds of what is kept.
const (
	maxConns    = 16_384   // connections whose requests are followed
	maxRequests = 32_768   // requests that are kept
	maxText     = 16 << 20 // bytes of prompts and answers that are kept
	maxLost     = 1024     // processes that are gone of which it is kept how much was lost
)

// Options are the settings of New.
type Options struct {
	LinkHolder *uprobe.LinkHolder // makes and holds the probes of OpenSSL; nil: this process does
	Mode       uprobe.Mode        // how they are attached
	Content    Content            // what is kept of prompts and answers
}

// process is what is known of a process.
type process struct {
	tls []*tlsLibrary
}

// Source follows requests. It implements daemon.Source and overhead.Source.
type Source struct {
	opts     Options
	programs *programs

	mu       sync.Mutex
	level    int
	procs    map[proc.ID]*process
	spent    bpf.RequestRequestProcess // of processes that are gone
	spentTLS uint64                    // ns of their calls of OpenSSL
	lost     map[uint32]uint64         // transfers of theirs that were lost, by pid
	closed   bool

	feed feeding
	fill atomic.Uint64 // bits of how full the ring was when it was last read: a long Feed must not hold up who asks
}

// New loads and attaches the programs.
func New(opts Options) (*Source, error) {
	programs, err := load(opts.Mode)
	if err != nil {
		return nil, err
	}
	return &Source{
		opts: opts, programs: programs, procs: map[proc.ID]*process{}, lost: map[uint32]uint64{},
		feed: newFeeding(opts.Content),
	}, nil
}

// Name returns what the source is called in status and reports.
func (s *Source) Name() string { return recording.RequestsSource }

// Follow records the requests that p serves from now on, over TLS too where it maps OpenSSL.
func (s *Source) Follow(p *proc.Process) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	if s.procs[p.ID()] == nil {
		s.procs[p.ID()] = &process{}
	}
	s.feed.mu.Lock()
	s.feed.parents[p.PID] = p.Parent
	s.feed.mu.Unlock()
	if err := s.programs.follow(p.PID); err != nil {
		return err
	}
	return s.followTLS(p)
}

// Forget is called when p is gone.
func (s *Source) Forget(p *proc.Process) {
	s.mu.Lock()
	known := s.procs[p.ID()]
	delete(s.procs, p.ID())
	again := false
	for id := range s.procs {
		again = again || id.PID == p.PID
	}
	if !again && !s.closed {
		gone, _ := s.programs.forget(p.PID) // at worst a program stays linked, which records nothing
		s.spent.Transfers, s.spent.Looks = s.spent.Transfers+gone.Transfers, s.spent.Looks+gone.Looks
		s.spent.Calls += gone.Calls
		if gone.Lost > 0 && len(s.lost) < maxLost {
			s.lost[p.PID] += gone.Lost
		}
		s.spent.Muted += gone.Muted
		s.spent.Syscalls += gone.Syscalls
		if known != nil {
			s.spentTLS += gone.Calls * known.tlsCall()
		}
	}
	s.mu.Unlock()
	if known != nil {
		for _, l := range known.tls {
			_ = l.close() // the kernel frees what belongs to a dead process
		}
	}
	if !again {
		s.feed.mu.Lock()
		delete(s.feed.parents, p.PID)
		s.feed.mu.Unlock()
		s.end(p.PID, clock.Monotonic())
	}
}

// Close takes the programs off. What is in the ring comes out at the next Feed.
func (s *Source) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	var errs []error
	for _, q := range s.procs {
		for _, l := range q.tls {
			errs = append(errs, l.close())
		}
	}
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	s.take()
	return errors.Join(append(errs, s.programs.close())...)
}

// Losses returns what keeps requests from being seen.
func (s *Source) Losses() []loss.Loss {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.feed.mu.Lock()
	left, dropped, ends := s.feed.left, s.feed.dropped, s.feed.cut
	cut, unkept := s.feed.taps.tooLong(), s.feed.taps.left
	texts := s.feed.textless
	s.feed.mu.Unlock()
	out := append(s.lossesTLS(), s.lossesOfTransfers()...)
	for _, l := range []loss.Loss{
		{Reason: loss.RequestsLost, Count: ends, Where: "ends", Detail: "ends of requests, because reads or writes were lost: they end as unbounded"},
		{Reason: loss.RequestsLost, Count: left, Where: "requests", Detail: fmt.Sprintf("requests, because no more than %d are kept", maxRequests)},
		{
			Reason: loss.RequestsLost, Count: texts, Where: "content",
			Detail: fmt.Sprintf("prompts and answers of requests, because no more than %d MiB of them are kept", maxText>>20),
		},
		{Reason: loss.RequestsLost, Count: dropped, Where: "connections", Detail: fmt.Sprintf("connections, because no more than %d are followed", maxConns)},
		{
			Reason: loss.RequestsLost, Count: cut, Where: "engine messages",
			Detail: "messages of an engine's steps, which are too long to be read or lost their ends",
		},
		{Reason: loss.RequestsLost, Count: unkept, Where: "engine", Detail: "steps or requests of engines, because there were too many"},
		{Reason: loss.RequestsUnseen, Count: s.programs.count(bpf.RequestRequestCountREQUEST_COUNT_UNSEEN), Detail: "transfers by other system calls than read, write, send and recv"},
	} {
		if l.Count > 0 {
			out = append(out, l)
		}
	}
	return out
}

// lossesOfTransfers returns what the ring had no room for, by process. The caller holds the lock.
func (s *Source) lossesOfTransfers() (out []loss.Loss) {
	all := s.programs.count(bpf.RequestRequestCountREQUEST_COUNT_LOST)
	if all == 0 {
		return nil
	}
	of := maps.Clone(s.lost)
	for pid := range s.programs.following {
		of[pid] += s.programs.counted(pid).Lost
	}
	for _, n := range of {
		all -= min(n, all)
	}
	of[0] = all
	for _, pid := range slices.Sorted(maps.Keys(of)) {
		if of[pid] > 0 {
			out = append(out, loss.Loss{
				Reason: loss.RequestsLost, Count: of[pid], PID: pid, Where: "transfers",
				Detail: "reads and writes, for want of room in their ring",
			})
		}
	}
	return out
}

// State reports whether any request was seen.
func (s *Source) State() recording.Source {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	state := recording.Source{
		Name:     recording.RequestsSource,
		State:    "waiting",
		Detail:   "no HTTP request was read yet",
		Optional: true,
		Content:  s.opts.Content.detail(),
	}
	if s.feed.number > 0 {
		state.State, state.Detail = "running", s.feed.taps.detail()
	}
	switch s.level {
	case levelPlain:
		state.Detail = cmp.Or(state.Detail, levels[s.level].Name)
	case levelOff:
		state.State, state.Detail = "off", levels[s.level].Name
	}
	if hooks := s.programs.describe(); hooks != "" {
		state.Detail = strings.TrimPrefix(state.Detail+"; "+hooks, "; ")
	}
	return state
}

// Requests returns those that overlap [from, to] (ns).
func (s *Source) Requests(from, to uint64) []recording.Request {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	var out []recording.Request
	for i := range s.feed.ended {
		if r := &s.feed.ended[i]; r.End >= from && r.Received <= to {
			out = append(out, *r)
		}
	}
	for i := range s.feed.fresh {
		if r := s.feed.fresh[i]; r.End >= from && r.Received <= to {
			s.feed.taps.complete(&r)
			out = append(out, r)
		}
	}
	for _, r := range s.feed.open {
		if r.received <= to {
			out = append(out, r.describe())
		}
	}
	slices.SortFunc(out, func(a, b recording.Request) int {
		return cmp.Or(cmp.Compare(a.Received, b.Received), cmp.Compare(a.Number, b.Number))
	})
	return out
}

// OnEnd has f called with each request that ends from now on.
func (s *Source) OnEnd(f func(*recording.Request)) {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	s.feed.onEnd = append(s.feed.onEnd, f)
}

// Serving returns how many requests each process serves now.
func (s *Source) Serving() map[uint32]int {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	out := map[uint32]int{}
	for _, r := range s.feed.open {
		out[r.pid]++
	}
	return out
}

// Fill returns how full the ring was at the last Feed, from 0 to 1: the daemon comes again the sooner.
func (s *Source) Fill() float64 { return math.Float64frombits(s.fill.Load()) }

// Feed hands over what has come since the last call.
func (s *Source) Feed(held uint64, emit func(batch []event.Event)) {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	s.take()
	s.feed.expire(held)
	if len(s.feed.ready) > 0 {
		emit(s.feed.ready)
		s.feed.ready = s.feed.ready[:0]
	}
}
