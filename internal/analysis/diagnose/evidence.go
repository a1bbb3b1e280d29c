package diagnose

import (
	"fmt"
	"math"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/summary/gpu"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/format"
)

// maxRows bounds the functions, calls or rows of copies of a finding.
const maxRows = 5

// evidence returns the facts behind a finding.
func (a *analysis) evidence(d *Diagnosis, f *Finding, g *group, w facts) {
	add := func(format string, args ...any) {
		f.Evidence = append(f.Evidence, Evidence{Text: fmt.Sprintf(format, args...)})
	}
	if d.Iterations.Tiles() && f.Share > 0 && !g.id.Busy() && g.id != cause.StartEnd {
		add(
			"About %s of each iteration, which takes %s on average (%s).",
			format.Span(
				uint64(f.Share*float64(d.Iterations.Inside)),
			),
			format.Span(d.Iterations.Mean),
			d.Iterations.Source,
		)
	}
	if g.id == cause.StartEnd {
		phases(f, d)
	} else {
		a.stretches(f, g)
	}
	a.inKind(d, f, g)
	a.stacks(f, g, w)
	a.others(f, g, w)
	switch g.id {
	case cause.LaunchOverhead:
		a.launches(f)
	case cause.SyncCopy, cause.CopyNotOverlapped, cause.CopyBound:
		a.copyRows(f, g.id)
	case cause.NoCPU, cause.Throttled:
		a.pressure(f, g)
	case cause.SmallBatch, cause.TinyKernels, cause.BandwidthBound:
		a.kernels(f, g.id)
	case cause.ExposedCommunication:
		a.communication(f)
	case cause.Straggler:
		a.late(d, f)
	case cause.Imbalance:
		a.uneven(f)
	case cause.PipelineBubble:
		a.bubbles(d, f)
	case cause.LowClocks:
		a.clocks(f)
	}
}

// stretches lists the longest intervals.
func (a *analysis) stretches(f *Finding, g *group) {
	for i, s := range g.longest {
		text := "One of the longest"
		if i == 0 {
			text = fmt.Sprintf("%s in all, the longest here", format.Plural(g.steps, "time", "times"))
			if a.seen() {
				text = fmt.Sprintf(
					"The GPU ran nothing for this reason %s, the longest here",
					format.Plural(g.steps, "time", "times"),
				)
			}
		}
		f.Evidence = append(f.Evidence, Evidence{Text: text, From: s.from, To: s.to})
	}
}

// phases lists the program's start and end.
func phases(f *Finding, d *Diagnosis) {
	if p := d.Start; p != nil {
		f.Evidence = append(f.Evidence, Evidence{Text: "Before the first iteration", From: p.From, To: p.To})
	}
	if p := d.End; p != nil {
		f.Evidence = append(f.Evidence, Evidence{Text: "After the last iteration", From: p.From, To: p.To})
	}
}

// stacks lists the functions, and the stack of the most expensive one.
func (a *analysis) stacks(f *Finding, g *group, w facts) {
	all, what := g.cost, "of it"
	if w.called {
		all = 0
		for i := range w.functions {
			all += w.functions[i].time
		}
		what = fmt.Sprintf("of %s inside of %s", format.Plural(all, "sample", "samples"), w.call)
	}
	for i := range w.functions[:min(len(w.functions), maxRows)] {
		fn := &w.functions[i]
		if (i > 0 || g.id == cause.StartEnd) && share(fn.time, all) < leastShare {
			break
		}
		e := Evidence{Text: fmt.Sprintf("%s %s in %s", format.Percent(share(fn.time, all)), what, fn.text())}
		if fn.inner != "" {
			e.Text += ", calling " + format.Clean(symbolName(fn.inner))
		}
		if i == 0 {
			e.Call = a.places.frames(fn.stack, w.called)
		}
		f.Evidence = append(f.Evidence, e)
	}
}

// others lists calls, the threads that waited, and what the other threads did meanwhile.
func (a *analysis) others(f *Finding, g *group, w facts) {
	add := func(format string, args ...any) {
		f.Evidence = append(f.Evidence, Evidence{Text: fmt.Sprintf(format, args...)})
	}
	// Of a missing CPU the doer is who lacks it: another thread than the waiter if several lack one in turn.
	if w.waiter != "" && w.doer != "" && w.waiter != w.doer && g.id != cause.NoCPU {
		add("%s, which launches the work, waited for %s.", w.waiter, w.doer)
	}
	var did []string
	total := uint64(0)
	for _, n := range g.inner {
		total += n
	}
	for id := cause.Unknown + 1; id < cause.Count; id++ {
		if n := g.inner[id]; share(n, total) >= leastShare {
			did = append(did, fmt.Sprintf("%s %s", doingWords(id), format.Percent(share(n, total))))
		}
	}
	switch {
	case len(did) == 0:
	case g.id == cause.StartEnd:
		add("Its main thread was: %s.", strings.Join(did, ", "))
	default:
		add("Meanwhile the other one was: %s.", strings.Join(did, ", "))
	}
	var calls []string
	for _, e := range g.calls.sorted() {
		if len(calls) < maxRows && share(e.time, g.calls.all) >= leastShare {
			calls = append(
				calls,
				fmt.Sprintf(
					"%s %s",
					format.Clean(a.t.Rec.Meta.Functions[e.key].Base),
					format.Percent(share(e.time, g.calls.all)),
				),
			)
		}
	}
	if len(calls) > 0 {
		add("By call: %s.", strings.Join(calls, ", "))
	}
	if w.object != "" {
		text := "The longest wait was " + w.object
		if w.by != "" {
			text += ", ended by " + w.by
		}
		add("%s.", text)
	}
}

// launches returns the rate of launches and what they launched.
func (a *analysis) launches(f *Finding) {
	if a.gpu == nil {
		return
	}
	text := fmt.Sprintf(
		"%s launches a second, kernels of %s on average",
		format.Count(uint64(a.gpu.Launches.PerSecond)),
		format.Span(a.total.meanKernel()),
	)
	if a.gpu.Launches.Timed > 0 {
		text += fmt.Sprintf("; a launch takes %s (p50)", format.Span(a.gpu.Launches.P50))
	}
	f.Evidence = append(f.Evidence, Evidence{Text: text + "."})
}

// copyRows lists the copies of a finding.
func (a *analysis) copyRows(f *Finding, id cause.ID) {
	if a.gpu == nil {
		return
	}
	n := 0
	for i := range a.gpu.Copies {
		c := &a.gpu.Copies[i]
		if n == maxRows || c.Exposed == 0 || !isAbout(c, id) {
			continue
		}
		n++
		how := "asynchronous"
		if !c.Async {
			how = "synchronous"
		}
		f.Evidence = append(
			f.Evidence,
			Evidence{Text: fmt.Sprintf(
				"%s, %s to %s, %s: %s of %s in all, %s, of which no kernel ran for %s.",
				c.Direction,
				c.Source,
				c.Destination,
				how,
				format.Plural(c.Count, "copy", "copies"),
				format.Size(c.Bytes),
				format.Span(c.Time),
				format.Span(c.Exposed),
			)},
		)
	}
}

// pressure lists the users of the CPUs.
func (a *analysis) pressure(f *Finding, g *group) {
	add := func(format string, args ...any) {
		f.Evidence = append(f.Evidence, Evidence{Text: fmt.Sprintf(format, args...)})
	}
	for i, e := range g.takers.sorted() {
		if i < maxRows && share(e.time, g.cost) >= leastShare {
			add("For %s of it, %s had taken the CPU", format.Percent(share(e.time, g.cost)), a.who(e.key))
		}
	}
	if n := g.cost - min(g.cost, g.takers.all); g.id == cause.NoCPU && share(n, g.cost) >= leastShare {
		add(
			"For %s of it, the thread had been woken, or had been born, and got no CPU at once",
			format.Percent(share(n, g.cost)),
		)
	}
	if p := &a.cpu.Pressure; p.Known && p.Periods > 0 {
		add(
			"The cgroup says that it was throttled in %s, for %s summed over CPUs",
			format.Plural(p.Periods, "period", "periods"),
			format.Span(p.Throttled),
		)
	}
}

// kernels lists the kernels of a finding.
func (a *analysis) kernels(f *Finding, id cause.ID) {
	if a.gpu == nil {
		return
	}
	n := 0
	for i := range a.gpu.Kernels.Rows {
		k := &a.gpu.Kernels.Rows[i]
		if n == maxRows || !a.fits(k, id) {
			continue
		}
		n++
		f.Evidence = append(
			f.Evidence,
			Evidence{Text: fmt.Sprintf(
				"%s: %s of %s on average, grid %d x %d x %d, block %d x %d x %d.",
				format.Clean(orElse(k.Name, "a kernel")),
				format.Plural(
					k.Count,
					"run",
					"runs",
				),
				format.Span(k.Mean),
				k.Grid[0],
				k.Grid[1],
				k.Grid[2],
				k.Block[0],
				k.Block[1],
				k.Block[2],
			)},
		)
	}
	if n == 0 { // the finding counts single runs; a row is an average of runs that may differ, and there are at most 200 rows
		p := a.total.poor[poorIndex(id)]
		f.Evidence = append(f.Evidence, Evidence{Text: fmt.Sprintf("%s of such kernels, %s on average.",
			format.Plural(p.runs, "run", "runs"), format.Span(p.time/max(1, p.runs)))})
	}
}

func (a *analysis) fits(k *gpu.Kernel, id cause.ID) bool {
	if timeline.IsCommunication(k.Full) {
		return false
	}
	memory := waitsForMemory(k.Full)
	switch id {
	case cause.BandwidthBound:
		return memory
	case cause.TinyKernels:
		return !memory && k.Mean < gpu.TinyBelow
	}
	return !memory && k.Mean >= gpu.TinyBelow && 2*uint64(k.Grid[0])*uint64(k.Grid[1])*uint64(k.Grid[2]) < a.total.sms
}

// meanKernel returns the mean duration of a kernel, ns.
func (m *measured) meanKernel() uint64 { return m.kernelTime / max(1, m.kernels) }

// meanBlocks returns the mean number of blocks of small kernels, weighted by time.
func (m *measured) meanBlocks() uint64 { return m.smallBlocks / max(1, m.small) }

// confidence returns the confidence of a finding and its reasons.
func (a *analysis) confidence(g *group, f *Finding) (c float64, because []string) {
	because = []string{}
	switch g.id {
	case cause.BandwidthBound:
		return 0.5, append(because, "it rests on the names of kernels, not on counters of the memory")
	case cause.SmallBatch:
		return 0.6, append(because, "it rests on the grids of kernels, not on counters of the multiprocessors")
	case cause.LowClocks:
		return 0.9, append(because, "the GPU tells why its clocks are low; how much of it kernels feel is not measured")
	case cause.StartEnd:
		return sureSeen, append(
			because,
			"when the process started or ended, and when its first or last iteration was, is in the recording",
		)
	case cause.TinyKernels,
		cause.CopyNotOverlapped,
		cause.CopyBound,
		cause.ExposedCommunication,
		cause.Straggler,
		cause.Imbalance:
		c = 0.95
		because = append(because, "each of them was recorded with its times")
	default:
		c, because = a.confidenceInSteps(g, f)
	}
	if a.subject != aboutGPUs {
		return rounded(c), because
	}
	if n := a.total.recorded(); n > 0 && n < 0.99 {
		because = append(
			because,
			fmt.Sprintf(
				"it rests on %s of the time, in which all that the GPU did was recorded",
				format.Percent(n),
			),
		)
	}
	c *= a.clock(g, &because)
	if g.id != cause.StartEnd {
		s := a.sampleOf(g)
		c *= s.believed(&because)
	}
	return rounded(c), because
}

// The initial confidence by the method with which a cause was found.
const (
	sureSeen     = 0.95
	sureInferred = 0.8
	sureGuessed  = 0.3
)

// confidenceInSteps weighs how the causes of steps are known, how many samples there are, and the calls that ended the
// gaps.
func (a *analysis) confidenceInSteps(g *group, f *Finding) (float64, []string) {
	sum := sureSeen*float64(g.sure[0]) + sureInferred*float64(g.sure[1]) + sureGuessed*float64(g.sure[2])
	c := sum / float64(max(1, g.cost))
	because := []string{}
	inferred := "inferred from what came before and after"
	if a.sampled(g.id) {
		inferred = "inferred from samples of the same code"
	}
	for i, words := range []string{"seen by an event of its own", inferred, "only what is left when nothing else fits"} {
		if n := g.sure[i]; share(n, f.Cost) >= leastShare {
			because = append(because, fmt.Sprintf("%s of it is %s", format.Percent(share(n, f.Cost)), words))
		}
	}
	if by := 1 - share(min(g.calls.all, g.cost), g.cost); a.sampled(g.id) &&
		by >= leastShare { // what is spent in calls needs no samples
		// With n samples, the share of a function is known to within 1/sqrt(n) of itself.
		n := g.samples
		c *= 1 - by/math.Sqrt(float64(n+2))
		because = append(because, fmt.Sprintf("%s fell into it", format.Plural(n, "sample", "samples")))
	}
	if bad := g.lost + g.guessed; share(bad, g.cost) >= leastShare {
		c *= 1 - 0.5*share(g.lost, g.cost) - 0.2*share(g.guessed, g.cost)
		because = append(
			because,
			fmt.Sprintf("the launch that ended %s of it is not known for certain", format.Percent(share(bad, g.cost))),
		)
	}
	if !a.cpu.Scheduled && a.table[g.id].Group != cause.Framework { // what lies inside of a call is known without
		c *= 0.7
		because = append(because, "when threads ran and waited was not recorded")
	}
	return c, because
}

// sampled reports whether a cause is known only by samples.
func (a *analysis) sampled(id cause.ID) bool {
	return a.table[id].Group == cause.CPUWork || id == cause.Compilation
}

// clock lowers the confidence where the clocks of the GPU and the CPU may be further apart than the steps are long.
func (a *analysis) clock(g *group, because *[]string) float64 {
	each := g.cost / max(1, g.steps)
	if a.t.Clock.Error > each && g.steps > 0 {
		*because = append(
			*because,
			fmt.Sprintf(
				"the clocks of the GPU and the CPU are %s apart at least, longer than the times it is about",
				format.Span(a.t.Clock.Error),
			),
		)
		return 0.5
	}
	return 1
}

// isAbout reports whether a finding about copies is about those of a row: copyKind for rows, but for results, which
// share a row with other copies to the host.
func isAbout(c *gpu.Copy, id cause.ID) bool {
	switch c.Direction {
	case "H2D", "HtoA", "D2H", "AtoH", "H2H":
		held := !c.Async || c.Source == "pageable" || c.Destination == "pageable"
		return held == (id == cause.SyncCopy)
	case "peer": // who waits for such a copy could copy without
		return id != cause.SyncCopy
	}
	return false // inside of the device, or nobody knows
}
