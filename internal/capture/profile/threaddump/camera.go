package threaddump

import (
	"bytes"
	"strings"

	"github.com/inferscope/inferscope/internal/capture/profile"
)

// tries is how often a stack is copied until it is one of one moment.
const tries = 4

// maxRetaken bounds the threads that are copied again one by one; each costs a look
// at every thread of the machine, 0.1 us each.
const maxRetaken = 128

// shot is what was copied of one thread.
type shot struct {
	raw    raw
	memory *memory // nil: on a CPU, or gone
	python profile.Raw
	torn   bool
}

// camera copies the threads of one process.
type camera struct {
	pid    uint32
	lister *lister
	interp *profile.Interpreter
}

// all copies every thread, those that ran meanwhile again.
func (c *camera) all() ([]shot, error) {
	list, err := c.lister.list()
	if err != nil {
		return nil, err
	}
	shots := make([]shot, len(list))
	for i := range list {
		shots[i] = c.shoot(&list[i])
	}
	after, err := c.lister.list()
	if err != nil {
		return nil, err
	}
	retaken := 0
	for i := range shots {
		if still(&shots[i].raw, after) {
			continue
		}
		shots[i].torn = true
		if retaken++; retaken <= maxRetaken {
			c.again(&shots[i])
		}
	}
	return shots, nil
}

// still reports whether a thread has not run since.
func still(t *raw, now []raw) bool {
	n := find(t.Tid, now)
	return n != nil && t.OnCpu == 0 && n.OnCpu == 0 && n.Switches == t.Switches
}

func find(tid uint32, list []raw) *raw {
	for i := range list {
		if list[i].Tid == tid {
			return &list[i]
		}
	}
	return nil
}

// again copies one thread until it stood still meanwhile. A thread that is on its CPU
// all the time has one stack of Python frames at most.
func (c *camera) again(s *shot) {
	for range tries {
		before, err := c.lister.list()
		if err != nil {
			return
		}
		now := find(s.raw.Tid, before)
		if now == nil {
			return // it has ended: what was read first is its last
		}
		*s = c.shoot(now)
		s.torn = true
		if now.OnCpu != 0 && c.steady(s) {
			s.torn = false
			return
		}
		after, err := c.lister.list()
		if err != nil {
			return
		}
		if still(now, after) {
			s.torn = false
			return
		}
	}
}

// steady reports whether a second look at the Python frames finds the same.
func (c *camera) steady(s *shot) bool {
	if c.interp == nil {
		return true // there is nothing to be torn
	}
	return c.walk(&s.raw).Same(s.python)
}

func (c *camera) shoot(t *raw) shot {
	s := shot{raw: *t, python: c.walk(t)}
	if t.OnCpu == 0 && t.ExitState == 0 {
		r := registers(t)
		s.memory = newMemory(c.pid, stackPointer(&r))
	}
	return s
}

// walk reads the Python frames; what cannot be read ends them.
func (c *camera) walk(t *raw) profile.Raw {
	if c.interp == nil || t.ExitState != 0 {
		return profile.Raw{}
	}
	m := &memory{pid: int(c.pid)}
	python, _ := c.interp.Walk(t.ThreadPointer, m.read)
	return python
}

// name returns the thread's own name, which it chose.
func name(t *raw) string {
	b := make([]byte, len(t.Comm))
	for i, c := range t.Comm {
		b[i] = byte(c)
	}
	b, _, _ = bytes.Cut(b, []byte{0})
	return strings.ToValidUTF8(string(b), "?")
}
