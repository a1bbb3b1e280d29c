package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/format"
)

// title says what is wrong, with names.
func (a *analysis) title(d *Diagnosis, w facts) string {
	at, who := in(w.place), orElse(w.doer, "another thread")
	switch w.id {
	case cause.StartEnd:
		return startEndTitle(d)
	case cause.PythonWork:
		return "Python code" + at + a.costs()
	case cause.NativeWork:
		return "Native code" + at + a.costs()
	case cause.Preprocessing:
		return a.preprocessing(&w) + at + a.costs()
	case cause.GC:
		return "Python's garbage collection" + at + a.costs()
	case cause.Serialization:
		return a.serialization(&w) + at + a.costs()
	case cause.Compilation:
		if w.inCalls {
			return w.call + at + a.costs()
		}
		return "Compiling or loading code" + at + a.costs()
	case cause.Allocation:
		return orElse(w.call, "Allocating memory") + at + a.costs()
	case cause.Worker:
		return a.waiting() + " for " + who + is(w.inner) + at
	case cause.Lock:
		return a.waiting() + " for a lock that " + who + " holds" + is(w.inner) + at
	case cause.GIL:
		return a.waiting() + " for Python's global lock (GIL), held by " + who + at
	case cause.Disk:
		return a.waiting() + " for the disk" + detail(w.object) + at
	case cause.Network:
		if call, _, piped := strings.Cut(w.object, " of pipe"); piped {
			return a.waiting() + " for another program, at the other end of a pipe" + detail(call) + at
		}
		call, _, _ := strings.Cut(w.object, " of socket:[") // whose number tells nobody anything
		return a.waiting() + " for an answer from the network" + detail(call) + at
	}
	return a.otherTitle(d, &w, at)
}

// seen reports whether it is known what the GPU did.
func (a *analysis) seen() bool { return a.subject == aboutGPUs || a.subject == aboutSilent }

// costs says whom something on the CPU costs time: nothing is said of a GPU that nobody watched.
func (a *analysis) costs() string {
	if a.seen() {
		return " holds up the GPU"
	}
	return " takes the main thread's time"
}

func (a *analysis) waiting() string {
	if a.seen() {
		return "The GPU waits"
	}
	return "The main thread waits"
}

// otherTitle is title for what the runtime, the host and the GPU itself do.
func (a *analysis) otherTitle(d *Diagnosis, w *facts, at string) string {
	switch w.id {
	case cause.LaunchOverhead:
		if !a.seen() {
			return "Launching" + at + a.costs()
		}
		if k, ok := a.fallsOut(d, a.groups[w.id]); ok {
			return fmt.Sprintf("Steps fall out of the CUDA graphs%s: %s, %s each, %s of the time",
				at, format.Plural(k.Launches, "launch", "launches"), format.Span(k.P50), format.Percent(k.Share))
		}
		if a.nearlyBusy() { // whose launches are in time, mostly: a kernel starts some time after the one before all the same
			return "The GPU pauses between kernels" + at
		}
		return "The CPU cannot launch as fast as the GPU runs" + at
	case cause.HostSync:
		if !a.seen() {
			return "Waiting for the GPU" + at + a.costs()
		}
		return orElse(w.call, "A synchronization") + at + " lets the GPU's queue run empty"
	case cause.SyncCopy:
		return "Synchronous or pageable copies" + at + " hold up the program"
	case cause.NoCPU:
		threads := "The main thread has no CPU"
		if a.seen() {
			threads = "Threads that feed the GPU have no CPU"
		}
		if w.by != "" {
			return threads + ": most was taken by " + w.by
		}
		return threads
	case cause.Sleep:
		return "The program sleeps" + at
	case cause.NoWork:
		return "Nobody asks for anything"
	case cause.SmallBatch:
		return fmt.Sprintf(
			"Kernels are too small for the GPU (%s on average for %d multiprocessors)",
			format.Plural(a.total.meanBlocks(), "block", "blocks"),
			a.total.sms,
		)
	case cause.TinyKernels:
		return "Most kernels are over sooner than they are launched"
	case cause.Straggler:
		return a.stragglerTitle()
	case cause.Imbalance:
		l := &a.ranks.Load
		return fmt.Sprintf(
			"GPUs have uneven work: the most of a step is %.1f times the mean",
			float64(l.Max)/float64(max(1, l.Mean)),
		)
	case cause.PipelineBubble:
		return "GPUs wait for each other's parts, one after the other"
	case cause.ExposedCommunication:
		return a.communicationTitle()
	case cause.LowClocks:
		return a.clocksTitle()
	case cause.BandwidthBound:
		if a.mostlyConverts() {
			return "Most of the GPU's time goes into kernels that copy or convert tensors, and compute nothing"
		}
		return "Most of the GPU's time goes into kernels that wait for its memory"
	}
	title := a.table[w.id].Title
	if w.id.Busy() && w.call != "" {
		at = " (" + w.call + at + ")"
	}
	return strings.ToUpper(title[:min(1, len(title))]) + title[min(1, len(title)):] + at
}

// startEndTitle says how long the program takes to start and to end, as far as that was recorded.
func startEndTitle(d *Diagnosis) string {
	start, end := format.Span(d.Start.length()), format.Span(d.End.length())
	switch {
	case d.End == nil:
		return "The program takes " + start + " to start"
	case d.Start == nil:
		return "The program takes " + end + " to end"
	}
	return "The program takes " + start + " to start and " + end + " to end"
}

func in(place string) string {
	if place == "" {
		return ""
	}
	return " in " + place
}

func is(doing string) string {
	if doing == "" {
		return ""
	}
	return ", which is " + doing
}

func detail(object string) string {
	if object == "" {
		return ""
	}
	return " (" + object + ")"
}

func orElse(s, instead string) string {
	if s == "" {
		return instead
	}
	return s
}

// preprocessing names the kind of preprocessing, as far as the names of the functions near the leaf tell.
func (a *analysis) preprocessing(w *facts) string {
	if len(w.functions) == 0 {
		return "Preprocessing"
	}
	frames := a.places.frames(w.functions[0].stack, false)
	text := strings.ToLower(strings.Join(frames[:min(len(frames), 12)], " "))
	for _, k := range []struct{ name, words string }{
		{"Tokenization", "token encode_batch sentencepiece bpe"},
		{"Decoding of images", "jpeg png decode_image imread pil"},
		{"Resizing of images", "resize"},
		{"Parsing", "csv parse"},
	} {
		for word := range strings.FieldsSeq(k.words) {
			if strings.Contains(text, word) {
				return k.name
			}
		}
	}
	return "Preprocessing"
}

// serialization names the kind of serialization, as far as it is known.
func (a *analysis) serialization(w *facts) string {
	switch a.formatOf(w) {
	case writesJSON:
		return "Writing JSON"
	case parsesJSON:
		return "Parsing JSON"
	}
	return "Serialization"
}

// headline says in one sentence what is wrong, what it costs and what to change.
func (a *analysis) headline(d *Diagnosis) string {
	var top *Finding
	if len(d.Findings) > 0 && d.Findings[0].Cost > 0 {
		top = &d.Findings[0]
	}
	busy := share(a.total.busy(), a.total.Time)
	switch {
	case d.Verdict == Hung:
		return hungHeadline(d)
	case d.Verdict == Stopped:
		return stoppedHeadline(d)
	case a.total.Time == 0 && !a.seen():
		return "Nothing was recorded of what the program did."
	case d.Verdict == NotEnough:
		return "There is not enough evidence to say what holds this program up."
	case d.Verdict == Idle:
		return fmt.Sprintf("Nobody asks for anything for %s of the time; the GPU works for %s.",
			format.Percent(a.noWork()), format.Percent(busy))
	case d.Verdict == Healthy:
		return a.healthy(d, busy)
	case (top == nil || top.Minor && d.Verdict == CPUOnly) && !a.seen():
		return a.noGPU() + ", and what the main thread did has no single cause that stands out."
	case top == nil:
		return fmt.Sprintf("The GPU works for %s of the time; what it loses has no single cause.", format.Percent(busy))
	case d.Verdict == CPUOnly:
		return fmt.Sprintf(
			"%s. %s: %s of the time (%s).",
			a.noGPU(),
			top.Title,
			format.Percent(top.Share),
			format.Span(top.Cost),
		)
	}
	s := fmt.Sprintf("%s: %s of the time (%s)", top.Title, format.Percent(top.Share), format.Span(top.Cost))
	if list := top.Changes; len(list) > 0 {
		s += ". To change it: " + clause(strings.TrimPrefix(list[0].Text, "In "+top.Place+": "))
	}
	return s + "."
}

// noGPU says that nothing was seen of a GPU. A server that has loaded CUDA and is asked for nothing uses one at other
// times.
func (a *analysis) noGPU() string {
	if len(a.t.Rec.Meta.Libraries) > 0 {
		return "No GPU was used in this time"
	}
	return "No GPU is used"
}

// healthy says what is left to gain of a GPU that works nearly all of the time, if anything is.
func (a *analysis) healthy(d *Diagnosis, busy float64) string {
	s := fmt.Sprintf("The GPU works for %s of the time", format.Percent(busy))
	if n := a.noWork(); n >= leastShare {
		s += ", and nobody asks for anything for " + format.Percent(n)
	}
	i := slices.IndexFunc(d.Findings, func(f Finding) bool { return f.Minor })
	if i < 0 {
		return s + ": nothing that stands out could be gained."
	}
	f := &d.Findings[i]
	return fmt.Sprintf(
		"%s. What is left to gain: %s, %s of the time (%s).",
		s,
		f.Title,
		format.Percent(f.Share),
		format.Span(f.Cost),
	)
}

// clause cuts a text at the end of its first part: what follows explains it.
func clause(s string) string {
	if i := strings.IndexAny(s, ":;("); i > 0 {
		s = s[:i]
	}
	s, _, _ = strings.Cut(s, ". ")
	return strings.TrimRight(s, ". ")
}
