package proc

// maxQueued bounds the changes that wait for a consumer that does not come:
// 65,536 of about 250 bytes are 16 MB.
const maxQueued = 65536

// queue holds changes in order until they are taken. Mapped says no more than
// "look again", so that one of each process is enough however many there were.
type queue struct {
	items   []Change
	mapped  map[ID]bool    // processes with a Mapped among items
	waiting map[uint32]int // changes of each target among items
	max     int
	dropped uint64
}

func newQueue(max int) *queue {
	return &queue{mapped: make(map[ID]bool), waiting: make(map[uint32]int), max: max}
}

// push appends c, or counts it where there is no room.
func (q *queue) push(c Change) {
	id := c.Process.ID()
	if c.Kind == Mapped && q.mapped[id] {
		return
	}
	if len(q.items) >= q.max {
		q.dropped++
		return
	}
	if c.Kind == Mapped {
		q.mapped[id] = true
	}
	q.items = append(q.items, c)
	q.waiting[c.Process.Root]++
}

func (q *queue) pop() {
	if q.items[0].Kind == Mapped {
		delete(q.mapped, q.items[0].Process.ID())
	}
	root := q.items[0].Process.Root
	if q.waiting[root]--; q.waiting[root] == 0 {
		delete(q.waiting, root)
	}
	q.items[0] = Change{}
	q.items = q.items[1:]
	if len(q.items) == 0 {
		q.items = nil // what append has grown
	}
}
