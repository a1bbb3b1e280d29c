package gap

import (
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// sockets describes on which side of its connections a process is.
type sockets struct {
	roles map[socket]recording.Role
	serve map[uint32]bool // processes that others connect to
	ask   map[uint32]bool // processes that connect to others
	// unclear are processes with connections of which nobody can tell who opened them.
	unclear map[uint32]bool
	calls   map[uint16]recording.Role
}

type socket struct {
	pid   uint32
	inode uint64
}

// newSockets reads the roles of sockets; waits are the events in which threads left their CPUs.
func newSockets(rec *recording.Recording, waits []int32) sockets {
	s := sockets{
		roles: map[socket]recording.Role{}, serve: map[uint32]bool{}, ask: map[uint32]bool{},
		unclear: map[uint32]bool{}, calls: roleCalls(rec.Meta.Host.Arch),
	}
	for i := range rec.Meta.Objects {
		o := &rec.Meta.Objects[i]
		switch o.Role {
		case recording.Listening, recording.Accepted:
			s.serve[o.PID] = true
		case recording.Connected:
			s.ask[o.PID] = true
		case recording.Unclear:
			s.unclear[o.PID] = true
		default:
			continue
		}
		if strings.HasPrefix(o.Name, "socket:") {
			s.roles[socket{o.PID, o.Inode}] = o.Role
		}
	}
	if len(s.unclear) > 0 {
		s.learn(rec, waits)
	}
	return s
}

// learn takes from the calls in which threads waited what processes do whose sockets do not tell.
func (s *sockets) learn(rec *recording.Recording, waits []int32) {
	for _, i := range waits {
		e := &rec.Events[i]
		switch s.calls[e.Func] {
		case recording.Listening:
			s.serve[e.PID] = true
		case recording.Connected:
			s.ask[e.PID] = true
		}
	}
}

// roleCalls are the system calls that say by themselves on which side the process is: accept, accept4 and connect
// (linux/arch: syscall_64.tbl, asm-generic/unistd.h).
func roleCalls(arch string) map[uint16]recording.Role {
	switch arch {
	case "amd64":
		return map[uint16]recording.Role{43: recording.Listening, 288: recording.Listening, 42: recording.Connected}
	case "arm64":
		return map[uint16]recording.Role{202: recording.Listening, 242: recording.Listening, 203: recording.Connected}
	}
	return nil
}

// cause explains a wait for a message that no thread of the target sent. Of a poll it is not known which of
// its descriptors it was for: a process that others connect to is taken to wait for them.
func (s *sockets) cause(e *event.Event, why threads.Reason) (cause.ID, Confidence) {
	role := s.role(e, why)
	serves, asks := s.serve[e.PID], s.ask[e.PID]
	switch {
	case role == recording.Listening, role == recording.Accepted:
		return cause.NoWork, Seen
	case role == recording.Connected:
		return cause.Network, Seen
	case why != threads.Socket && why != threads.Poll: // a pipe or an eventfd that another thread wrote to
		if e.Flags&event.FromIRQ != 0 || e.Args[0] == 0 {
			return cause.Unknown, Guessed
		}
		return cause.Network, Inferred
	case role == recording.Unclear && serves == asks, s.unclear[e.PID] && !serves && !asks:
		return cause.Unknown, Guessed // nobody is blamed for what cannot be told
	case serves:
		return cause.NoWork, Inferred
	case why == threads.Socket || asks:
		return cause.Network, Inferred
	}
	if e.Flags&event.FromIRQ != 0 {
		return cause.Sleep, Inferred // it polls nothing that is connected to anybody, and no thread ended it: a timer did
	}
	return cause.Sleep, Guessed
}

// role is that of the socket that a thread waited for, "" where it waited for another file or the role is not known.
func (s *sockets) role(e *event.Event, why threads.Reason) recording.Role {
	if why != threads.Socket {
		return ""
	}
	if role := s.calls[e.Func]; role != "" {
		return role
	}
	return s.roles[socket{e.PID, e.Args[3] & (1<<48 - 1)}]
}
