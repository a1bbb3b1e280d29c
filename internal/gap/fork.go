package gap

import (
	"slices"

	"github.com/inferscope/inferscope/internal/threads"
	"github.com/inferscope/inferscope/internal/timeline"
)

// fork returns a walker that knows what w knows, and that another goroutine may use beside others: a walker remembers where it last looked, and what
// stacks say. It has no steps yet.
func (w *walker) fork(t *timeline.Timeline) *walker {
	x := *w
	x.threads, x.owners, x.chief = make([]*thread, len(w.threads)), slices.Clone(w.owners), slices.Clone(w.chief)
	for i, th := range w.threads {
		own := *th
		if th.stacks != nil {
			stacks := *th.stacks
			own.stacks = &stacks
		}
		if th.asked.by != nil {
			own.asked = asked{first: 1}
		}
		x.threads[i] = &own
	}
	for _, list := range [][]*thread{x.owners, x.chief} {
		for i, th := range list {
			if th != nil {
				list[i] = x.threads[th.index]
			}
		}
	}
	x.stacks = w.stacks.fork()
	x.out, x.deal, x.chain, x.floor, x.first = &Walk{t: t}, newDealer(), nil, Seen, 0
	return &x
}

// fork returns the same for another goroutine.
func (s *stacks) fork() *stacks {
	x := *s
	x.activity, x.found = threads.NewClassifier(s.rec), nil
	x.work, x.futex, x.sleeps = slices.Clone(s.work), slices.Clone(s.futex), slices.Clone(s.sleeps)
	return &x
}
