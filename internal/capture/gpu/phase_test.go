package gpu

import (
	"slices"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/inferscope/inferscope/internal/capture/proc"
)

// wayOf is the table in the comment of transitions, the other way round: what can happen in a phase, and where it
// leads.
var wayOf = map[phase]map[happening]phase{
	phaseIdle: {isWanted: phaseEntering, isForbidden: phaseForbidden, isRetired: phaseOver, isDead: phaseEnded},
	phaseEntering: {
		isWanted:    phaseEntering,
		isForbidden: phaseForbidden,
		isTired:     phaseResting,
		hasCome:     phaseWatching,
		isRetired:   phaseOver,
		isDead:      phaseEnded,
	},
	phaseForbidden: entersAgain,
	phaseResting:   entersAgain,
	phaseWatching:  withAgent,
	phaseRecording: withAgent,
	phaseHindered:  withAgent,
	phaseHarmful:   {isRetired: phaseOver, isDead: phaseEnded},
	phaseLeaving:   {hasLeft: phaseOver, isDead: phaseEnded},
	phaseOver:      {isLeaving: phaseLeaving, isDead: phaseEnded},
	phaseEnded:     {isDead: phaseEnded},
}

var entersAgain = map[happening]phase{
	isWanted: phaseEntering, isForbidden: phaseForbidden, hasCome: phaseWatching, isRetired: phaseOver,
	isDead: phaseEnded,
}

var withAgent = map[happening]phase{
	isWatched: phaseWatching, isFree: phaseRecording, isHindered: phaseHindered, isHarmful: phaseHarmful,
	hasEnded: phaseOver, isRetired: phaseOver, isDead: phaseEnded,
}

// TestTransitions: whatever happens in whatever phase leads where the table says, or is refused, said, and changes
// nothing.
func TestTransitions(t *testing.T) {
	if len(wayOf) != int(phases) {
		t.Fatalf("%d of %d phases have ways", len(wayOf), phases)
	}
	for from := range phases {
		for h := range happenings {
			core, log := observer.New(zap.ErrorLevel)
			s := &Source{opts: Options{Log: zap.New(core)}}
			q := &session{process: &proc.Process{PID: 7}, phase: from, detail: "before"}
			s.step(q, h, "after")
			want, may := wayOf[from][h]
			if !may && (q.phase != from || q.detail != "before" || log.Len() != 1) {
				t.Errorf("%q while %s is not refused: %s, %q, %d lines in the log",
					h, from, q.phase, q.detail, log.Len())
			}
			if may && (q.phase != want || q.detail != "after" || log.Len() != 0) {
				t.Errorf("%q while %s: %s, %q, want %s", h, from, q.phase, q.detail, want)
			}
		}
	}
}

// TestPhasesAreReached: there is a way from the beginning to each phase, and from each to the end.
func TestPhasesAreReached(t *testing.T) {
	reach := func(from phase) []phase {
		seen := []phase{from}
		for i := 0; i < len(seen); i++ {
			for h := range happenings {
				if to, may := seen[i].next(h); may && !slices.Contains(seen, to) {
					seen = append(seen, to)
				}
			}
		}
		return seen
	}
	if all := reach(phaseIdle); len(all) != int(phases) {
		t.Errorf("%d of %d phases are reached: %v", len(all), phases, all)
	}
	for from := range phases {
		all := reach(from)
		if !slices.Contains(all, phaseEnded) {
			t.Errorf("a session that is %s never ends", from)
		}
		if final := from == phaseHarmful || from == phaseLeaving || from >= phaseOver; final &&
			slices.ContainsFunc(all, records) {
			t.Errorf("a session that is %s records again: %v", from, all)
		}
		if from.state() == "" && from != phaseIdle || from.String() == "" {
			t.Errorf("phase %d has no name", from)
		}
	}
}

func records(p phase) bool { return p == phaseWatching || p == phaseRecording || p == phaseHindered }

// TestWidths: a gate that is not wanted wide any more while it becomes it ends narrow.
func TestWidths(t *testing.T) {
	for from, want := range map[width][3]width{ // settled, settled without some, narrowed
		narrow: {narrow, narrow, narrow}, widening: {wide, narrow, withdrawn}, withdrawn: {narrow, narrow, withdrawn},
	} {
		if got := [3]width{from.settled(true), from.settled(false), from.narrowed()}; got != want {
			t.Errorf("from %d: %v, want %v", from, got, want)
		}
	}
	if got := wide.narrowed(); got != narrow {
		t.Errorf("a wide gate becomes %d", got)
	}
}

// TestBlockedEndsWithTheProgram: a thread that could not be held is a matter of the program that it ran, and not of the
// one that takes its place in the process.
func TestBlockedEndsWithTheProgram(t *testing.T) {
	pr := startProducer(t)
	s := newTestSource(t, Options{Inject: &failing{err: errIdle}, Slots: 1024})
	s.begin(pr.p, "the program before")
	s.mu.Lock()
	before := s.sessions[pr.p.ID()]
	before.arming.blocked = true
	s.mu.Unlock()
	if err := s.Follow(pr.p); err != nil { // the process runs another program than that
		t.Fatal(err)
	}
	s.mu.Lock()
	phase, kept := before.phase, s.sessions[pr.p.ID()]
	s.mu.Unlock()
	if phase != phaseEnded || kept != nil {
		t.Fatalf("the session of the program before is %s", phase)
	}
	s.begin(pr.p, "the program after")
	s.mu.Lock()
	defer s.mu.Unlock()
	if why := ungated(s.sessions[pr.p.ID()]); why != "" {
		t.Errorf("the new program opens no window: %s", why)
	}
}
