// Package diff compares two recordings of the same program: what takes longer or shorter, where the time went, why
// the GPU was idle, which kernels and functions changed, and which of the differences are more than noise.
// It is a pure function of the two recordings.
package diff

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/quantile"
	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
)

// kind identifies the JSON format.
const kind = "inferscope.diff"

// surely is the probability below which a difference counts as more than noise. With some hundred rows one in a hundred
// would show by chance, so it is less.
const surely = 0.001

// small is the relative difference below which a change is none, however sure it is: thousands of iterations make
// any difference sure.
const small = 0.01

// Comparison lists the changes from A to B.
type Comparison struct {
	Kind    string    `json:"kind"`
	A       sideModel `json:"a"`
	B       sideModel `json:"b"`
	Latency *Change   `json:"latency"` // of an iteration; absent where one of the two has none, or has others
	// Differ describes how the iterations of the two differ, so that their latencies are not compared; "" if they do
	// not.
	Differ string `json:"iterations_differ,omitempty"`
	// of Parts, Causes and Kernels: "ns per iteration", or "share of the time" where there are none
	Scale   string   `json:"scale"`
	Parts   []Change `json:"breakdown"`
	Causes  []Change `json:"causes"`  // why the GPU was idle
	Kernels []Change `json:"kernels"` // the ones of most change, the most first
	Stacks  []Change `json:"stacks"`  // CPU: share of samples by function, likewise
	Notes   []string `json:"notes"`   // what the numbers cannot say
}

// sideModel is one of the two recordings.
type sideModel struct {
	Name       string  `json:"name"`
	Target     string  `json:"target"`
	Verdict    string  `json:"verdict"`
	Headline   string  `json:"headline"`
	Window     uint64  `json:"window_ns"`
	GPUTime    uint64  `json:"seen_ns"` // of GPUs: what the breakdown rests on
	Iterations uint64  `json:"iterations"`
	Source     string  `json:"iterations_are,omitempty"` // how they were found
	P50        uint64  `json:"p50_ns,omitempty"`
	P99        uint64  `json:"p99_ns,omitempty"`
	Mean       float64 `json:"mean_ns,omitempty"`
}

// Change is one number in both.
type Change struct {
	Name     string  `json:"name"`
	A        float64 `json:"a"`
	B        float64 `json:"b"`
	Relative float64 `json:"relative"` // (B - A) / A; 0 where A is 0
	// P is the probability of such a difference without a change; -1: unknown.
	P    float64 `json:"p"`
	Sure bool    `json:"significant"` // P is below surely, and the difference is above small
}

// change creates a row.
func change(name string, a, b, p float64) Change {
	c := Change{Name: name, A: a, B: b, P: p}
	if a != 0 {
		c.Relative = (b - a) / a
	}
	c.Sure = p >= 0 && p < surely && (math.Abs(c.Relative) >= small || a == 0)
	return c
}

// Worse reports whether the latency grew by more than a fraction, and more than by noise; ok is false where there is no
// latency in both to judge by.
func (c *Comparison) Worse(by float64) (worse, ok bool) {
	if c.Latency == nil || c.Latency.P < 0 {
		return false, false
	}
	return c.Latency.Relative > by && c.Latency.P < surely, true
}

// side is one recording with what is compared.
type side struct {
	sideModel
	result *analysis.Result
	time   *timeline.Timeline
	blocks blocks
	perIt  float64 // ns of a mean iteration; 0: there are none
}

// New compares two recordings, which it does not change.
func New(nameA, nameB string, a, b *recording.Recording) *Comparison {
	x, y := newSide(nameA, a), newSide(nameB, b)
	c := &Comparison{
		Kind:    kind,
		Notes:   []string{},
		Parts:   []Change{},
		Causes:  []Change{},
		Kernels: []Change{},
		Stacks:  []Change{},
	}
	c.latency(x, y)
	c.scale(x, y)
	c.parts(x, y)
	c.kernels(x, y)
	c.stacks(x, y)
	c.A, c.B = x.sideModel, y.sideModel
	return c
}

func newSide(name string, rec *recording.Recording) *side {
	m := analysis.Run(rec)
	s := &side{result: m, time: m.Timeline}
	s.blocks = newBlocks(s.time)
	s.sideModel = sideModel{
		Name: name, Target: target(rec), Verdict: string(m.Diagnosis.Verdict), Headline: m.Diagnosis.Headline,
		Window: rec.Meta.To - rec.Meta.From, GPUTime: m.Diagnosis.Breakdown.Time,
	}
	if it := m.Diagnosis.Iterations; it != nil {
		s.Iterations, s.Source, s.P50, s.P99 = it.Count, it.Source, it.P50, it.P99
		s.Mean = mean(floats(it.Durations))
	}
	return s
}

// target returns how the process that was asked for was started: of several with its pid, the last.
func target(rec *recording.Recording) string {
	name := ""
	for _, p := range rec.Meta.Processes {
		if p.PID == rec.Meta.Target {
			name = cmp.Or(p.Cmdline, p.Comm)
		}
	}
	return name
}

func floats(list []uint64) []float64 {
	out := make([]float64, len(list))
	for i, n := range list {
		out[i] = float64(n)
	}
	return out
}

// latency compares the iterations: their medians, by the ranks of all of them.
func (c *Comparison) latency(x, y *side) {
	i, j := x.result.Diagnosis.Iterations, y.result.Diagnosis.Iterations
	if i == nil || j == nil {
		c.Notes = append(
			c.Notes,
			"one of the two has no iterations, so latencies cannot be compared; name them: with scope(\"request\"): ...",
		)
		return
	}
	if c.Differ = differ(i, j); c.Differ != "" {
		c.Notes = append(c.Notes, "latencies are not compared, for an iteration is not the same in both: "+c.Differ+
			"; name what you mean in both programs: with scope(\"request\"): ...")
		return
	}
	a, b := floats(i.Durations), floats(j.Durations)
	l := change("iteration, median", quantile.Median(slices.Clone(a)), quantile.Median(slices.Clone(b)), rankSum(a, b))
	c.Latency = &l
	if len(a) < least || len(b) < least {
		c.Notes = append(c.Notes, "too few iterations to tell a difference from noise: record for longer")
	}
}

// What rows of parts, causes and kernels are in.
const (
	perIteration = "ns per iteration"
	ofTime       = "share of the time"
)

// scale chooses what a share of the time is a share of: of an iteration, as in reports, where these fill the time.
func (c *Comparison) scale(x, y *side) {
	i, j := x.result.Diagnosis.Iterations, y.result.Diagnosis.Iterations
	if c.Latency != nil && i.Tiles() && j.Tiles() {
		c.Scale = perIteration
		x.perIt, y.perIt = float64(cmp.Or(i.Inside, i.Mean)), float64(cmp.Or(j.Inside, j.Mean))
		return
	}
	c.Scale, x.perIt, y.perIt = ofTime, 1, 1
}

// differ says how what is an iteration in one recording is another thing in the other; "" where it is the same. Threads
// have other numbers in each run.
func differ(i, j *diagnose.Iteration) string {
	x, y := definition(i.Source), definition(j.Source)
	if asDriver(x) == asDriver(y) {
		return ""
	}
	return x + " in A, " + y + " in B"
}

// driverCalls names the runtime's calls that wait for the GPU as the driver's, and these without their versions.
var driverCalls = strings.NewReplacer(
	"cudaDeviceSynchronize", "cuCtxSynchronize",
	"cudaThreadSynchronize", "cuCtxSynchronize",
	"cudaStreamSynchronize", "cuStreamSynchronize",
	"cudaEventSynchronize", "cuEventSynchronize",
	"Synchronize_v2", "Synchronize",
)

// asDriver is a definition by the calls of the driver: at a reduced level of "cuda calls" a recording has only these.
func asDriver(definition string) string {
	if isOfThread(definition) {
		return driverCalls.Replace(definition)
	}
	return definition
}

func isOfThread(source string) bool {
	return strings.HasPrefix(source, "period of ") || strings.HasPrefix(source, "steps of ")
}

// definition is what iterations are, without the thread that was found to make them: "period of 2 calls of
// cuCtxSynchronize".
func definition(source string) string {
	if what, _, ok := strings.Cut(source, " in "); ok && isOfThread(source) {
		return what
	}
	return source
}

// parts compares the breakdowns, and the causes of idle time by the spread over blocks of time.
func (c *Comparison) parts(x, y *side) {
	type pair struct {
		name string
		busy bool
		a, b float64
	}
	pairs := map[string]*pair{}
	var order []string
	take := func(s *side, into func(p *pair, share float64)) {
		for _, part := range s.result.Diagnosis.Breakdown.Parts {
			if pairs[part.Key] == nil {
				pairs[part.Key] = &pair{name: part.Name, busy: part.Busy}
				order = append(order, part.Key)
			}
			into(pairs[part.Key], part.Share*s.perIt)
		}
	}
	take(x, func(p *pair, v float64) { p.a = v })
	take(y, func(p *pair, v float64) { p.b = v })
	for _, key := range order {
		p := pairs[key]
		if p.busy {
			c.Parts = append(c.Parts, change(p.name, p.a, p.b, unknown))
			continue
		}
		c.Causes = append(c.Causes, change(p.name, p.a, p.b, rankSum(x.blocks.of(key), y.blocks.of(key))))
	}
	busy := change("GPU busy", x.perIt*mean(x.blocks.busy), y.perIt*mean(y.blocks.busy),
		rankSum(x.blocks.busy, y.blocks.busy))
	if len(x.blocks.busy)+len(y.blocks.busy) > 0 {
		c.Parts = append([]Change{busy}, c.Parts...)
	}
}

// maxRows bounds the kernels and functions that are listed.
const maxRows = 20

// byChange sorts rows by how much they changed, then by size, and keeps the first ones.
func byChange(list []Change) []Change {
	slices.SortStableFunc(list, func(x, y Change) int {
		return cmp.Or(cmp.Compare(math.Abs(y.B-y.A), math.Abs(x.B-x.A)), cmp.Compare(y.A, x.A), cmp.Compare(x.Name, y.Name))
	})
	return list[:min(len(list), maxRows)]
}

// functionKey is a function of samples.
type functionKey struct{ kind, name, file string }

// stacks compares in which functions threads were sampled: Python's, and native ones.
func (c *Comparison) stacks(x, y *side) {
	n, m := x.result.CPU.Origins.Samples, y.result.CPU.Origins.Samples
	if n == 0 || m == 0 {
		c.Notes = append(c.Notes, "one of the two has no CPU samples, so functions cannot be compared")
		return
	}
	counts := map[functionKey][2]uint64{}
	for side, s := range []*side{x, y} {
		for _, list := range [][]cpu.Function{s.result.CPU.Python, s.result.CPU.Functions} {
			for _, f := range list {
				k := functionKey{string(f.Kind), f.Name, f.File}
				v := counts[k]
				v[side] += f.Self
				counts[k] = v
			}
		}
	}
	for k, v := range counts {
		name := k.name
		if k.file != "" {
			name += " (" + k.file + ")"
		}
		c.Stacks = append(c.Stacks,
			change(name, float64(v[0])/float64(n), float64(v[1])/float64(m), proportions(v[0], n, v[1], m)))
	}
	c.Stacks = byChange(c.Stacks)
}
