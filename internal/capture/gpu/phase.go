package gpu

import (
	"slices"

	"go.uber.org/zap"
)

// phase is where a session is. It changes by Source.step alone, as transitions says.
type phase uint8

// The phases of a session.
const (
	phaseIdle      phase = iota // no agent is wanted
	phaseEntering               // an agent is being injected
	phaseForbidden              // none can come in; it may be tried again later
	phaseResting                // agents ended too often: the next one is injected later
	phaseWatching               // an agent is there, and is told to record nothing so far
	phaseRecording              // an agent is there, and may record
	phaseHindered               // an agent is there, and no window may open, or CUPTI refuses it
	phaseHarmful                // its windows left too much memory: the agent was told to go, and stays away
	phaseLeaving                // the process was released; its agent was told to go, and is awaited
	phaseOver                   // nothing is expected of its process or its agent any more
	phaseEnded                  // its program has ended: nobody writes its ring any more
	phases
)

// state returns what status and recordings call a phase.
func (p phase) state() state {
	return [phases]state{
		phaseIdle: absent, phaseEntering: waiting, phaseForbidden: refused, phaseResting: dormant,
		phaseWatching: waiting, phaseRecording: running, phaseHindered: refused,
		phaseHarmful: dormant, phaseLeaving: gone, phaseOver: gone, phaseEnded: gone,
	}[p]
}

// mayOpen reports whether an agent is there that may open windows, now or when its process was watched for longer.
func (q *session) mayOpen() bool { return q.phase == phaseWatching || q.phase == phaseRecording }

// String names a phase in the log.
func (p phase) String() string {
	return [phases]string{
		"idle", "entering", "forbidden", "resting", "watching", "recording", "hindered", "harmful", "leaving", "over",
		"ended",
	}[p]
}

// happening is what changes the phase of a session.
type happening uint8

// What happens to a session.
const (
	isWanted    happening = iota // an agent is to be injected
	isForbidden                  // it cannot come in, or not yet
	isTired                      // the last ones ended too soon
	hasCome                      // an agent is there
	isWatched                    // its process must be watched for longer before a window opens
	isFree                       // nothing speaks against windows
	isHindered                   // something does
	isHarmful                    // its windows left too much memory
	hasEnded                     // the agent ended by itself: another session takes its place
	isRetired                    // the process was released, and lives on
	isDead                       // the process has ended, or runs another program
	isLeaving                    // its program lives on, with an agent that was told to go
	hasLeft                      // that one has gone, or is given up
	happenings
)

// String says in the log what happened.
func (h happening) String() string {
	return [happenings]string{
		"an agent is wanted", "it is forbidden", "it ended too often", "it has come", "it is watched",
		"it is free to record", "it is hindered", "it is harmful", "it has ended by itself",
		"the session is retired", "the program has ended", "the agent is leaving", "it has left",
	}[h]
}

// transition is where a happening leads in the phases that it can come in.
type transition struct {
	from []phase
	to   phase
}

// transitions are all that there are; what is not here is a mistake of this package's and changes nothing:
//
//	happening     from                                    to
//	isWanted      idle, entering, forbidden, resting      entering
//	isForbidden   idle, entering, forbidden, resting      forbidden
//	isTired       entering                                resting
//	hasCome       entering, forbidden, resting            watching
//	isWatched     watching, recording, hindered           watching
//	isFree        watching, recording, hindered           recording
//	isHindered    watching, recording, hindered           hindered
//	isHarmful     watching, recording, hindered           harmful
//	hasEnded      watching, recording, hindered           over
//	isRetired     all but leaving, over and ended         over
//	isDead        all                                     ended
//	isLeaving     over                                    leaving
//	hasLeft       leaving                                 over
//
// An agent that comes when its session was retired meanwhile is told to go: isLeaving. No way leads back from harmful,
// leaving, over and ended to an agent that records.
var transitions = [happenings]transition{
	isWanted:    {[]phase{phaseIdle, phaseEntering, phaseForbidden, phaseResting}, phaseEntering},
	isForbidden: {[]phase{phaseIdle, phaseEntering, phaseForbidden, phaseResting}, phaseForbidden},
	isTired:     {[]phase{phaseEntering}, phaseResting},
	hasCome:     {[]phase{phaseEntering, phaseForbidden, phaseResting}, phaseWatching},
	isWatched:   {[]phase{phaseWatching, phaseRecording, phaseHindered}, phaseWatching},
	isFree:      {[]phase{phaseWatching, phaseRecording, phaseHindered}, phaseRecording},
	isHindered:  {[]phase{phaseWatching, phaseRecording, phaseHindered}, phaseHindered},
	isHarmful:   {[]phase{phaseWatching, phaseRecording, phaseHindered}, phaseHarmful},
	hasEnded:    {[]phase{phaseWatching, phaseRecording, phaseHindered}, phaseOver},
	isRetired: {
		[]phase{
			phaseIdle,
			phaseEntering,
			phaseForbidden,
			phaseResting,
			phaseWatching,
			phaseRecording,
			phaseHindered,
			phaseHarmful,
		},
		phaseOver,
	},
	isDead: {
		[]phase{
			phaseIdle, phaseEntering, phaseForbidden, phaseResting, phaseWatching, phaseRecording, phaseHindered,
			phaseHarmful, phaseLeaving, phaseOver, phaseEnded,
		},
		phaseEnded,
	},
	isLeaving: {[]phase{phaseOver}, phaseLeaving},
	hasLeft:   {[]phase{phaseLeaving}, phaseOver},
}

// next returns where a happening leads, and whether it can come in this phase.
func (p phase) next(h happening) (phase, bool) {
	if t := transitions[h]; slices.Contains(t.from, p) {
		return t.to, true
	}
	return p, false
}

// step changes the phase of a session, and what is said of it. What cannot happen changes nothing: a session that is
// over does not come back because somebody was late. The caller holds the lock.
func (s *Source) step(q *session, h happening, detail string) {
	next, may := q.phase.next(h)
	if !may {
		s.opts.Log.Error(
			"a GPU session is not in order: nothing is changed; report this",
			zap.Uint32("pid", q.process.PID),
			zap.Stringer("phase", q.phase),
			zap.Stringer("event", h),
		)
		return
	}
	q.phase, q.detail = next, detail
}
