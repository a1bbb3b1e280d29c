package whatif

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/whatif/replay"
)

// Verb is what an edit does.
type Verb string

// The verbs.
const (
	Without Verb = "without" // a cause, with the remedy that belongs to it; or a function that is not called any more
	Faster  Verb = "faster"  // a cause or function of the CPU takes Factor times less
	Kernels Verb = "kernel"  // a kernel takes Factor times less
	Merge   Verb = "merge"   // small copies or elementwise kernels of a cause or name that are launched in a row become one
	Overlap Verb = "overlap" // a cause, function or copy leaves the path: it is done beside, one after the other
)

// Edit is one change to the program.
type Edit struct {
	Verb    Verb
	Pattern string   // of names, with * and ?; of a cause its key
	Cause   cause.ID // where Pattern is a cause; cause.Count: it is none
	Factor  float64  // of Faster and Kernels, above 0
	Workers int      // of Without worker: how many times as many do the work beside; 0: as many as are needed
}

// String writes the edit as it is typed.
func (e Edit) String() string {
	switch e.Verb {
	case Faster, Kernels:
		return fmt.Sprintf("%s %s=%s", e.Verb, e.Pattern, strconv.FormatFloat(e.Factor, 'g', -1, 64))
	case Without:
		if e.Workers > 0 {
			return fmt.Sprintf("%s %s, %d times the workers", e.Verb, e.Pattern, e.Workers)
		}
	}
	return fmt.Sprintf("%s %s", e.Verb, e.Pattern)
}

// aliases are shorter words for causes.
func aliases() map[string]cause.ID {
	return map[string]cause.ID{
		"sync": cause.HostSync, "syncs": cause.HostSync, "launches": cause.LaunchOverhead,
		"launch": cause.LaunchOverhead, "copies": cause.SyncCopy, "copy": cause.SyncCopy, "locks": cause.Lock,
		"workers": cause.Worker, "loader": cause.Worker, "alloc": cause.Allocation, "python": cause.PythonWork,
		"native": cause.NativeWork, "sleeps": cause.Sleep, "pickle": cause.Serialization, "throttling": cause.Throttled,
	}
}

// Parse reads what follows a verb: "sync", "tokenize*", and of Faster and Kernels "tokenize*=2".
func Parse(v Verb, text string) (Edit, error) {
	e := Edit{Verb: v, Pattern: strings.TrimSpace(text), Cause: cause.Count}
	if v == Faster || v == Kernels {
		i := strings.LastIndexByte(e.Pattern, '=')
		if i < 0 {
			return e, fmt.Errorf("%q: say how many times faster, as in %s=2", text, text)
		}
		f, err := strconv.ParseFloat(e.Pattern[i+1:], 64)
		if err != nil || !(f > 0 && f <= 1e9) { // NaN is neither
			return e, fmt.Errorf("%q: %q is not a number above 0", text, e.Pattern[i+1:])
		}
		e.Pattern, e.Factor = e.Pattern[:i], f
	}
	if e.Pattern == "" {
		return e, fmt.Errorf("%q: name a cause, or a function with * and ?", text)
	}
	if _, err := path.Match(e.Pattern, ""); err != nil {
		return e, fmt.Errorf("%q is no pattern: %w", e.Pattern, err)
	}
	if v == Kernels {
		return e, nil
	}
	if id, ok := aliases()[e.Pattern]; ok {
		e.Cause, e.Pattern = id, id.String()
	} else if row, _, ok := cause.ByKey(e.Pattern); ok {
		e.Cause = row.ID
	}
	return e, nil
}

// matches reports whether an edit is about a What by its name. Case does not matter, and a pattern without * is that of
// the name without its file.
func (e Edit) matches(name string) bool {
	name, pattern := strings.ToLower(name), strings.ToLower(e.Pattern)
	bare, _, _ := strings.Cut(name, " (")
	for _, n := range []string{name, bare} {
		if ok, _ := path.Match(strings.ReplaceAll(pattern, "/", "|"), strings.ReplaceAll(n, "/", "|")); ok {
			return true
		}
	}
	return false
}

// about reports whether an edit is about a What at all.
func (e Edit) about(w *replay.What) bool {
	switch {
	case e.Cause != cause.Count:
		return w.Kind < replay.Kernel && w.Cause == e.Cause
	case e.Verb == Kernels:
		return w.Kind == replay.Kernel && e.matches(w.Name)
	case w.Kind == replay.Kernel:
		return false
	case e.waitsToo() && (w.Kind == replay.Wait || w.Kind == replay.External):
		return e.calls(w)
	}
	return (w.Kind == replay.Run || w.Kind == replay.Call || w.Kind == replay.Sync || w.Kind == replay.Copy) &&
		(e.matches(w.Name) || e.calls(w))
}

// waitsToo reports whether an edit is about the waits of a function, too: one that is not called any more or is called
// beside does not wait here. One that is faster may wait for as long.
func (e Edit) waitsToo() bool { return e.Verb == Without || e.Verb == Overlap }

// calls reports whether a function that an edit names was calling when a thread computed: what it calls is changed with
// it.
func (e Edit) calls(w *replay.What) bool {
	for name := range strings.SplitSeq(w.Callers, "\n") {
		if name != "" && e.matches(name) {
			return true
		}
	}
	return false
}
