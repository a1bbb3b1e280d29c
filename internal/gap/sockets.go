package gap

import (
	"strings"

	"github.com/inferscope/inferscope/internal/cause"
	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/record"
	"github.com/inferscope/inferscope/internal/threads"
)

// sockets says on which side of its connections a process is.
type sockets struct {
	roles map[socket]record.Role
	serve map[uint32]bool // processes that others connect to
	ask   map[uint32]bool // processes that connect to others
	calls map[uint16]record.Role
}

type socket struct {
	pid   uint32
	inode uint64
}

func newSockets(rec *record.Recording) sockets {
	s := sockets{roles: map[socket]record.Role{}, serve: map[uint32]bool{}, ask: map[uint32]bool{}, calls: roleCalls(rec.Meta.Host.Arch)}
	for i := range rec.Meta.Objects {
		o := &rec.Meta.Objects[i]
		switch o.Role {
		case record.Listening, record.Accepted:
			s.serve[o.PID] = true
		case record.Connected:
			s.ask[o.PID] = true
		default:
			continue
		}
		if strings.HasPrefix(o.Name, "socket:") {
			s.roles[socket{o.PID, o.Inode}] = o.Role
		}
	}
	return s
}

// roleCalls are the system calls that say by themselves on which side the process is: accept, accept4 and connect
// (linux/arch: syscall_64.tbl, asm-generic/unistd.h).
func roleCalls(arch string) map[uint16]record.Role {
	switch arch {
	case "amd64":
		return map[uint16]record.Role{43: record.Listening, 288: record.Listening, 42: record.Connected}
	case "arm64":
		return map[uint16]record.Role{202: record.Listening, 242: record.Listening, 203: record.Connected}
	}
	return nil
}

// cause explains a wait for a message that no thread of the target sent. Of a poll it is not known which of
// its descriptors it was for: a process that others connect to is taken to wait for them.
func (s *sockets) cause(e *event.Event, why threads.Reason) (cause.ID, Sureness) {
	if why == threads.Socket {
		role := s.calls[e.Func]
		if role == "" {
			role = s.roles[socket{e.PID, e.Args[3] & (1<<48 - 1)}]
		}
		switch role {
		case record.Listening, record.Accepted:
			return cause.NoWork, Seen
		case record.Connected:
			return cause.Network, Seen
		}
	}
	switch {
	case why != threads.Socket && why != threads.Poll: // a pipe or an eventfd that a stranger wrote to
		if e.Flags&event.FromIRQ != 0 || e.Args[0] == 0 {
			return cause.Unknown, Guessed
		}
		return cause.Network, Inferred
	case s.serve[e.PID]:
		return cause.NoWork, Inferred
	case why == threads.Socket || s.ask[e.PID]:
		return cause.Network, Inferred
	}
	return cause.Sleep, Guessed // it polls nothing that is connected to anybody: its time limit ends it
}
