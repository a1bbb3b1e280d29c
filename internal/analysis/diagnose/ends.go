package diagnose

import (
	"slices"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// What a program does before its first iteration and after its last it does once, and a recording of a minute holds
// more of it than a week in production: it would hide what each iteration costs. So it is told apart where it is
// proven, and said beside the breakdown.

// bornBefore is how long before a recording its processes may have started, ns, so that their start is in it all the
// same: `inferscope run` makes the process first, which waits until a daemon records, some 10 ms (a second on a busy
// machine), and Born is up to 10 ms early. A program that iterates already does so as soon as the recording begins, so
// that nothing is taken for its start.
const bornBefore = 2_000_000_000

// ends finds the program's start and end, as far as they are in the recording, and what is left between them. Where
// that is too little for an answer, nothing is told apart.
func (a *analysis) ends(d *Diagnosis) {
	whole := timeline.Span{From: a.t.From, To: a.t.To}
	a.within = whole
	users := a.users()
	if len(users) == 0 || a.subject != aboutGPUs && (d.Iterations == nil || !d.Iterations.Always) {
		return
	}
	born, died, ended := a.lives(users)
	if it := d.Iterations; it != nil && it.Missed > follow {
		ended = false // nobody saw what was done after the last call that was recorded
	}
	if !born && !ended {
		return // and nothing was looked for
	}
	first, last := a.iterating(d.Iterations)
	first, last = a.served(users[0], first, last)
	if ended && died > whole.From {
		whole.To = died // nobody was there any more
	}
	between := whole
	if born && first > whole.From+longest(d.Iterations) {
		between.From = first
	}
	if ended && last+longest(d.Iterations) < whole.To {
		between.To = last
	}
	if between.From >= between.To || between.To-between.From < leastTime {
		return
	}
	a.within = between
	if between.From > whole.From {
		d.Start = &Phase{whole.From, between.From}
	}
	if between.To < whole.To {
		d.End = &Phase{between.To, whole.To}
	}
	a.gather(users[0], d.Start, d.End)
}

// Between is the interval of the breakdown: the window without the program's start and end.
func (d *Diagnosis) Between(t *timeline.Timeline) timeline.Span {
	between := timeline.Span{From: t.From, To: t.To}
	if d.Start != nil {
		between.From = d.Start.To
	}
	if d.End != nil {
		between.To = d.End.From
	}
	return between
}

// longest returns the maximum duration of an iteration, ns: a part of one cannot be longer.
func longest(it *Iteration) uint64 {
	if it == nil {
		return 0
	}
	return it.Max
}

// users returns the processes that use the GPUs; the target if there are none.
func (a *analysis) users() []int32 {
	var out []int32
	for i := range a.t.Devices {
		out = append(out, a.t.Devices[i].Users...)
	}
	if len(out) == 0 {
		for i := range a.t.Processes {
			if a.t.Processes[i].PID == a.t.Rec.Meta.Target {
				out = append(out, int32(i))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// lives reports whether all of some processes were born in the recording, when the last of them ended, and whether all
// did.
func (a *analysis) lives(users []int32) (born bool, died uint64, ended bool) {
	born, ended = true, true
	for _, i := range users {
		p := &a.t.Processes[i]
		born = born && p.Born != 0 && p.Born+bornBefore >= a.t.From
		ended = ended && p.Died != 0 && p.Died <= a.t.To
		died = max(died, p.Died)
	}
	return born, died, ended
}

// iterating returns from when to when the program did what it does again and again: its iterations, but no less than
// all work of the GPU but one iteration's on either side, for what comes before is work that nobody recognised.
func (a *analysis) iterating(it *Iteration) (first, last uint64) {
	first, last = a.t.To, a.t.From
	if it != nil {
		first, last = it.From, it.To
	}
	for i := range a.t.Devices {
		from, to := a.working(i, it)
		first, last = min(first, from), max(last, to)
	}
	if it == nil || !it.Always {
		from, to := a.unwatched()
		first, last = min(first, from), max(last, to)
	}
	return first, last
}

// working returns when a device ran its first and its last kernel but those of one iteration.
func (a *analysis) working(device int, it *Iteration) (first, last uint64) {
	dev := &a.t.Devices[device]
	list := a.t.Activities[dev.First:dev.Last]
	skip := a.perIteration(device, it)
	first, last = a.t.To, a.t.From
	for i, left := 0, skip; i < len(list); i++ {
		if list[i].Kind != timeline.Kernel {
			continue
		}
		if left == 0 {
			first = list[i].Start
			break
		}
		left--
	}
	for i, left := len(list)-1, skip; i >= 0; i-- {
		if list[i].Kind != timeline.Kernel {
			continue
		}
		if left == 0 {
			return first, list[i].End
		}
		left--
	}
	return first, last
}

// perIteration returns the number of kernels of a device in one iteration, rounded down; 0 without iterations.
func (a *analysis) perIteration(device int, it *Iteration) int {
	if it == nil || it.PerSec <= 0 || device >= len(a.w.Covered) {
		return 0
	}
	dev, n := &a.t.Devices[device], 0
	for i := dev.First; i < dev.Last; i++ {
		if act := &a.t.Activities[i]; act.Kind == timeline.Kernel && act.Start >= it.From && act.Start < it.To {
			n++
		}
	}
	seen := a.w.Covered[device].Both(timeline.Spans{{From: it.From, To: it.To}}).Total()
	if seen == 0 {
		return 0
	}
	return int(float64(n) / (float64(seen) / 1e9) / it.PerSec)
}

// unwatched returns the first and the last GPU request while GPU activity was not recorded.
func (a *analysis) unwatched() (first, last uint64) {
	first, last = a.t.To, a.t.From
	asks := a.inGroups("launch", "graph", "sync")
	for i := range a.t.Threads {
		th := &a.t.Threads[i]
		var seen timeline.Spans
		if int(th.Process) < len(a.t.Seen) {
			seen = a.t.Seen[th.Process].Activity
		}
		for op := th.First; op < th.Last; op++ {
			if o := &a.t.Ops[op]; asks[o.Func] && !seen.Holds(o.Start) {
				first, last = min(first, o.Start), max(last, o.End())
			}
		}
	}
	return first, last
}

// leastWait is how long a server waits at the least, ns, so that it counts as ready: one that looks for a request that
// is not there yet asks several times a second.
const leastWait = 10_000_000

// served makes the start of a server end where it begins to wait for its first request, and its end begin where it
// waits no more: what it does meanwhile is nothing, and that is said elsewhere.
func (a *analysis) served(process int32, first, last uint64) (from, to uint64) {
	pid := a.t.Processes[process].PID
	for _, s := range a.w.Did(pid, pid, a.t.From, first) {
		if s.Cause == cause.NoWork && length(&s) >= leastWait {
			first = s.From
			break
		}
	}
	steps := a.w.Did(pid, pid, last, a.t.To)
	for i := range slices.Backward(steps) {
		if s := &steps[i]; s.Cause == cause.NoWork && length(s) >= leastWait {
			last = s.To
			break
		}
	}
	return first, last
}

// gather collects what the main thread of a process did in its phases.
func (a *analysis) gather(process int32, phases ...*Phase) {
	pid := a.t.Processes[process].PID
	a.once = newGroup(cause.StartEnd)
	for _, p := range phases {
		if p == nil {
			continue
		}
		steps := a.w.Did(pid, pid, p.From, p.To)
		for i := range steps {
			s := steps[i]
			s.Cause, s.Inner = cause.StartEnd, s.Cause
			a.once.add(a, &s, nil)
		}
	}
}
