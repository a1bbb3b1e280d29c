package cpu

import (
	"cmp"
	"maps"
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/threads"
)

// slept is one time that a thread was blocked. There can be a million: it is small, and
// everything else is looked up where it is needed.
type slept struct {
	interval int32 // index into the thread's Intervals
	stack    stack
	row      int32 // index into the rows that waits makes
	activity threads.Activity
}

// sleeps gathers every blocked interval of the program, in the order of threads and time.
func (a *analysis) sleeps() [][]slept {
	out := make([][]slept, len(a.threads))
	for i := range a.threads {
		t := &a.threads[i]
		if t.IsRecorder() {
			continue
		}
		stacks := a.details.Stacks(t.PID, t.TID)
		list := make([]slept, 0, blocked(t))
		for n := range t.Intervals {
			if iv := &t.Intervals[n]; iv.State == threads.Blocked {
				at := a.stacks.number(stacks.Of(iv.Wait))
				list = append(list, slept{interval: int32(n), stack: at, activity: a.stacks.of(at).activity})
			}
		}
		out[i] = list
	}
	return out
}

func blocked(t *threads.Thread) int {
	n := 0
	for i := range t.Intervals {
		if t.Intervals[i].State == threads.Blocked {
			n++
		}
	}
	return n
}

// gil returns for how long the thread with this index was blocked for the GIL, in ns.
func (a *analysis) gil(i int) uint64 {
	total := uint64(0)
	for n := range a.slept[i] {
		if s := &a.slept[i][n]; s.activity == threads.GIL {
			total += a.threads[i].Intervals[s.interval].Dur()
		}
	}
	return total
}

// eachSleep visits every blocked interval, in the order of threads and time.
func (a *analysis) eachSleep(visit func(t *threads.Thread, s *slept, iv *threads.Interval)) {
	for i := range a.threads {
		t := &a.threads[i]
		for n := range a.slept[i] {
			s := &a.slept[i][n]
			visit(t, s, &t.Intervals[s.interval])
		}
	}
}

// futex is one lock or condition of a process.
type futex struct {
	pid     uint32
	address uint64
}

func (a *analysis) futex(iv *threads.Interval) futex {
	e := &a.rec.Events[iv.Wait]
	return futex{e.PID, e.Args[2]}
}

// spread gives waits whose stack tells nothing the activity of those at the same futex
// whose stack does: native callers are known of some waits only, and a futex that is
// the GIL once is the GIL always.
func (a *analysis) spread() {
	votes := map[futex]int{}
	a.eachSleep(func(_ *threads.Thread, s *slept, iv *threads.Interval) {
		if s.stack == 0 || iv.Reason != threads.Futex || !a.stacks.of(s.stack).callers {
			return
		}
		if s.activity == threads.GIL {
			votes[a.futex(iv)]++
		} else {
			votes[a.futex(iv)]--
		}
	})
	maps.DeleteFunc(votes, func(_ futex, n int) bool { return n <= 0 })
	if len(votes) == 0 {
		return
	}
	a.eachSleep(func(_ *threads.Thread, s *slept, iv *threads.Interval) {
		if iv.Reason == threads.Futex && !a.stacks.of(s.stack).callers && votes[a.futex(iv)] > 0 {
			s.activity = threads.GIL
		}
	})
}

// group is what waits of one row have in common.
type group struct {
	pid, tid uint32
	place    word
	object   word // of files; futexes are told apart by place
	reason   threads.Reason
	activity threads.Activity
}

// row gathers the waits of a group.
type row struct {
	group
	time, count   uint64
	longest, from uint64 // ns: of the longest one, how long and since when
	event         int32  // of the longest one
	places        tally  // of waits for the GIL
	into          *row   // the row that has taken this one's waits
	wakers        *wakers
}

// waits returns the rows of Summary.Waits.
func (a *analysis) waits() []Wait {
	rows := a.rows()
	adopt(rows)
	all := make([]Wait, 0, len(rows))
	byWait := map[int]*row{}
	order := []int{}
	for _, r := range rows {
		if r.into == nil {
			byWait[len(all)] = r
			order = append(order, len(all))
			all = append(all, a.wait(r))
		}
	}
	slices.SortFunc(order, func(i, j int) int {
		x, y := &all[i], &all[j]
		return cmp.Or(cmp.Compare(y.Time, x.Time), cmp.Compare(x.PID, y.PID), cmp.Compare(x.TID, y.TID),
			cmp.Compare(x.Reason, y.Reason), cmp.Compare(x.Place, y.Place), cmp.Compare(x.Text, y.Text))
	})
	order = order[:min(len(order), maxWaits)]
	for _, i := range order {
		byWait[i].wakers = newWakers(a)
	}
	a.wake(rows)
	out := []Wait{}
	for _, i := range order {
		w := all[i]
		w.By, w.Enders = byWait[i].wakers.result(), len(byWait[i].wakers.order)
		out = append(out, w)
	}
	return out
}

// rows deals the waits out to rows.
func (a *analysis) rows() []*row {
	var rows []*row
	found := map[group]int32{}
	objects := map[threads.Subject]word{}
	a.eachSleep(func(t *threads.Thread, s *slept, iv *threads.Interval) {
		place := a.stacks.place(s.stack)
		g := group{pid: t.PID, tid: t.TID, place: place, reason: iv.Reason, activity: s.activity}
		if iv.Reason != threads.Futex {
			g.object = a.object(objects, iv)
		}
		if s.activity == threads.GIL {
			g.place = 0 // any Python code may have to wait for it: one row of a thread is enough
		}
		n, ok := found[g]
		if !ok {
			n = int32(len(rows))
			found[g] = n
			rows = append(rows, &row{group: g})
		}
		s.row = n
		rows[n].add(iv, place)
	})
	return rows
}

// object returns what a wait was for. It is the text of it, for two descriptors may be of one file.
func (a *analysis) object(seen map[threads.Subject]word, iv *threads.Interval) word {
	subject := a.details.Subject(iv.Wait, iv.Reason)
	n, ok := seen[subject]
	if !ok {
		n = a.stacks.words.number(a.details.Text(iv.Wait))
		seen[subject] = n
	}
	return n
}

func (r *row) add(iv *threads.Interval, place word) {
	d := iv.Dur()
	r.count++
	r.time += d
	if d > r.longest {
		r.longest, r.from, r.event = d, iv.From, iv.Wait
	}
	if r.activity == threads.GIL {
		r.places.add(place, d)
	}
}

// adopt adds waits without a stack to the one row of the same thread, reason and
// object that has a place, if there is just one.
func adopt(rows []*row) {
	with := map[group][]*row{}
	for _, r := range rows {
		if r.place != 0 && r.activity != threads.GIL {
			bare := r.group
			bare.place = 0
			with[bare] = append(with[bare], r)
		}
	}
	for _, r := range rows {
		if list := with[r.group]; len(list) == 1 && r.place == 0 {
			list[0].take(r)
		}
	}
}

func (r *row) take(other *row) {
	other.into = r
	r.count += other.count
	r.time += other.time
	if other.longest > r.longest || other.longest == r.longest && other.from < r.from {
		r.longest, r.from, r.event = other.longest, other.from, other.event
	}
}

func (a *analysis) wait(r *row) Wait {
	w := Wait{
		PID: r.pid, TID: r.tid, Thread: a.names[key{r.pid, r.tid}], Reason: r.reason.String(),
		Text:    a.details.Text(r.event),
		Place:   a.stacks.words.text(r.place),
		Count:   r.count,
		Time:    r.time,
		Longest: r.longest,
		Share:   share(r.time, a.length()),
	}
	if r.activity != threads.Other {
		w.Activity = r.activity.String()
	}
	if r.activity == threads.GIL {
		w.Place = a.most(&r.places)
	}
	return w
}
