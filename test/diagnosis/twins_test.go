package diagnosis

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/analysis/whatif"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/test/watch"
)

// TestWhatIf runs programs with planted causes and their fixed twins, and holds what the recording of the first
// predicts against what the second one does.
func TestWhatIf(t *testing.T) {
	f := givenFlags()
	if !f.all && f.replay == "" && f.only == "" {
		t.Skip("takes half an hour: make bench-whatif runs it")
	}
	r, lanes := &runner{f: f, folder: f.replay}, []lane{{}}
	r.spare.Store(spareAll)
	if f.replay == "" {
		watch.NeedRoot(t)
		lanes = f.divide(t)
		r.bench = newBench(t, f.daemon)
		r.bench.truth = "counts" // all that is asked is how much was done, and writing more takes the programs' time
		r.bench.longer = 2       // 3 s of a CPU that is slower for some tenths of a second at a time are off by 4%
	}
	jobs := f.jobs(func(s *scenario) bool { _, ok := twinOf(s); return ok })
	all := sweep(t, lanes, jobs, r.predict,
		func(all []*predicted) { f.document(t, whatIfSection, whatIfDocument(all, len(jobs))) })
	if len(all) == 0 {
		return
	}
	fmt.Print(predictedTable(all, len(jobs)))
	if s := predictedScore(all); s.near < 0.9 || s.inside < 0.9 {
		t.Errorf(
			"%.0f%% of the predictions are within %.0f%%, %.0f%% of the intervals hold: want 90%% of both",
			100*s.near,
			100*predictedError,
			100*s.inside,
		)
	}
}

// TestTwins holds that each twin belongs to a scenario, and that no scenario that could have one is forgotten.
func TestTwins(t *testing.T) {
	left := twins()
	for _, s := range scenarios() {
		twin, ok := left[s.name]
		if twin.bad != nil {
			t.Errorf("%s: %v", s.name, twin.bad)
		}
		delete(left, s.name)
		row, _, _ := cause.ByKey(s.want)
		if ok != whatif.HasRemedy(row.ID) {
			t.Errorf("%s: twin %v", s.name, ok)
		}
	}
	for name := range left {
		t.Errorf("there is no scenario %s", name)
	}
}

type runner struct {
	f      *flags
	bench  *bench
	folder string
	spare  atomic.Int64 // recordings that may still be made again
}

// predict records a program and measures it and its twin in turns, and compares.
func (r *runner) predict(t *testing.T, l *lane, j *job) *predicted {
	t.Helper()
	name, s := filepath.Base(t.Name()), &j.s
	tw, _ := twinOf(s)
	o, m := r.kept(t, name)
	if m == nil {
		o, m = r.measure(t, l, s, &tw)
	}
	if r.f.keep != "" {
		folder := filepath.Join(r.f.keep, name)
		must.NoError(t, errors.Join(o.save(folder), m.keep(folder)))
	}
	tl := timeline.Build(o.recording)
	study := whatif.New(tl, tl.Index.Threads())
	v := &predicted{
		number: j.number, scenario: s, Prediction: study.Predict(tw.edits...), Measured: m.speedup(),
		Watched: m.watched(), Tries: len(m.Recorded), Cost: study.Recording(),
		Replay: study.Error(), Learned: study.Learned(), Unexplained: study.Unexplained(),
	}
	v.Least, v.Most = m.spread()
	t.Logf(
		"%s: %s: predicted %.2f (%.2f to %.2f), measured %.2f (%.2f to %.2f), off by %+.1f%%, while recorded %.0f%% %s",
		s.name,
		v.Plan,
		v.Speedup,
		v.Low,
		v.High,
		v.Measured,
		v.Least,
		v.Most,
		100*v.off(),
		100*v.Watched,
		v.mark(),
	)
	return v
}

// kept takes what was kept of a pair; nil where there is no folder to take it from.
func (r *runner) kept(t *testing.T, name string) (observation, *turns) {
	t.Helper()
	if r.folder == "" {
		return observation{}, nil
	}
	o, err := load(filepath.Join(r.folder, name))
	m, missing := keptTurns(filepath.Join(r.folder, name))
	if err = errors.Join(err, missing); errors.Is(err, fs.ErrNotExist) {
		t.Skip("not kept")
	}
	must.NoError(t, err)
	return o, m
}

// measure runs a program and its twin in turns, without a daemon, and between two blocks of these records the program,
// again where its pace was not that of its turns.
func (r *runner) measure(t *testing.T, l *lane, s *scenario, tw *twin) (observation, *turns) {
	t.Helper()
	s = s.sharing(filepath.Join(t.TempDir(), "rates"))
	after := tw.fixed(s)
	program := r.bench.begin(t, l, s)
	defer program.end()
	program.signal(t, syscall.SIGSTOP)
	fixed := r.bench.begin(t, l, &after)
	defer fixed.end()
	fixed.signal(t, syscall.SIGSTOP)
	m := &turns{Blocks: [][]pair{alternate(t, program, fixed)}}
	var list []*recording.Recording
	for {
		program.signal(t, syscall.SIGCONT)
		rec, pace := r.recording(t, program)
		program.signal(t, syscall.SIGSTOP)
		list, m.Recorded = append(list, rec), append(m.Recorded, pace)
		m.Blocks = append(m.Blocks, alternate(t, program, fixed))
		if m.usual() || len(list) == mostTries || r.spare.Add(-1) < 0 {
			return observation{list[m.taken()], &truth{}}, m
		}
		t.Logf("%s: a recording at %.0f%% of the pace of the turns beside it is made again",
			s.name, 100*m.pace(len(list)-1))
	}
}

// recording records a program, and returns how much it got done in a second meanwhile.
func (r *runner) recording(t *testing.T, p *party) (*recording.Recording, float64) {
	t.Helper()
	w := r.bench.watch(t, p)
	defer w.daemon.Stop()
	began, from := p.done(t), time.Now()
	rec, _ := w.take()
	if p.s.cpuOnly {
		return rec, float64(p.done(t)-began) / time.Since(from).Seconds()
	}
	return rec, rate(timeline.Build(rec))
}
