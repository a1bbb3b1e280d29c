package diagnose

import (
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/cause"
)

// Together is what several findings bring that are fixed at once.
type Together struct {
	Causes []string `json:"causes"` // their keys, in the order of the findings
	One    bool     `json:"one"`    // one change fixes all of them: their calls and their computing are in one function
	// the second limits the program once the first is fixed; it may be no finding as long as the first hides it
	Next bool `json:"next"`
	Gain Gain `json:"gain"`
}

// mostTogether is how many findings are put together.
const mostTogether = 5

// together predicts what the findings bring that one change fixes, what limits the program once the first one is fixed,
// and what all of the first ones bring.
func (a *analysis) together(list []ranked, predict Predictor) []Together {
	out := []Together{}
	add := func(t Together, remedies []cause.Remedy) {
		same := func(o Together) bool {
			return o.Next && len(o.Causes) == len(t.Causes) &&
				!slices.ContainsFunc(t.Causes, func(c string) bool { return !slices.Contains(o.Causes, c) })
		}
		if len(remedies) < 2 || slices.ContainsFunc(out, same) {
			return
		}
		if g, ok := predict.Together(remedies...); ok {
			a.bounded(&g)
			t.Gain = g
			out = append(out, t)
		}
	}
	var all []cause.Remedy
	var keys []string
	for i := range list {
		if f := &list[i]; len(all) < mostTogether && f.rank == timeLost && f.Gain != nil {
			all, keys = append(all, cause.Remedy{Cause: f.id}), append(keys, f.Cause)
		}
	}
	one, of := oneChange(list)
	add(Together{Causes: of, One: true}, one)
	if next, ok := a.next(list, predict); ok {
		add(Together{Causes: []string{list[0].Cause, a.table[next].Key}, Next: true},
			[]cause.Remedy{{Cause: list[0].id}, {Cause: next}})
	}
	add(Together{Causes: keys}, all)
	return out
}

// next returns what limits the program once the first finding is fixed.
func (a *analysis) next(list []ranked, predict Predictor) (cause.ID, bool) {
	if len(list) == 0 || list[0].rank != timeLost || list[0].Gain == nil || list[0].Gain.Speedup < leastGain {
		return 0, false
	}
	return predict.Next(cause.Remedy{Cause: list[0].id})
}

// oneChange returns the findings about a result that is fetched from the GPU and worked on in the same function: who
// does that work on the GPU fetches less, and waits less.
func oneChange(list []ranked) (remedies []cause.Remedy, keys []string) {
	function := ""
	fetches := func(f *ranked) bool { return f.id == cause.HostSync || f.id == cause.SyncCopy }
	works := func(f *ranked) bool {
		return f.id == cause.PythonWork || f.id == cause.NativeWork || f.id == cause.Preprocessing
	}
	for i := range list {
		if name := functionOf(list[i].Place); fetches(&list[i]) && name != "" {
			for k := range list {
				if works(&list[k]) && functionOf(list[k].Place) == name {
					function = name
				}
			}
		}
	}
	if function == "" {
		return nil, nil
	}
	for i := range list {
		if f := &list[i]; f.Gain != nil && functionOf(f.Place) == function && (fetches(f) || works(f)) {
			remedies, keys = append(remedies, cause.Remedy{Cause: f.id, Less: works(f)}), append(keys, f.Cause)
		}
	}
	return remedies, keys
}

// functionOf returns the function of a place in Python, with its file: "encode (infer.py" of "encode (infer.py:12)"; ""
// where it is none.
func functionOf(place string) string {
	name, _, ok := strings.Cut(place, ".py:")
	if !ok {
		return ""
	}
	return name
}
