package diagnosis

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/cause"
	"github.com/inferscope/inferscope/internal/record"
	"github.com/inferscope/inferscope/internal/timeline"
	"github.com/inferscope/inferscope/internal/whatif"
	"github.com/inferscope/inferscope/test/watch"
)

// TestWhatIf runs programs with planted causes and their fixed twins, and holds what the recording of the first foretells
// against what the second one does.
func TestWhatIf(t *testing.T) {
	f := givenFlags()
	if !f.all && f.replay == "" && f.only == "" {
		t.Skip("takes half an hour: make bench-whatif runs it")
	}
	r := &runner{f: f, folder: f.replay, spare: spareAll}
	if f.replay == "" {
		watch.NeedRoot(t)
		r.bench = newBench(t, f.daemon)
		r.bench.truth = "counts" // all that is asked is how much was done, and writing more takes the programs' time
		r.bench.longer = 2       // 3 s of a CPU that is slower for some tenths of a second at a time are off by 4%
	}
	var all []*foretold
	for i, s := range scenarios() {
		tw, ok := twinOf(&s)
		if n := i + 1; ok && f.chosen(n, &s) {
			t.Run(fmt.Sprintf("s%02d", n), func(t *testing.T) { all = append(all, r.foretell(t, n, &s, &tw)) })
		}
	}
	if len(all) == 0 {
		return
	}
	text := foretoldTable(all)
	fmt.Print(text)
	if f.doc != "" {
		if err := os.WriteFile(f.doc, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if s := foretoldScore(all); s.near < 0.9 || s.inside < 0.9 {
		t.Errorf("%.0f%% of the predictions are within %.0f%%, %.0f%% of the intervals hold: want 90%% of both", 100*s.near, 100*foretoldError, 100*s.inside)
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
	spare  int // recordings that may still be made again
}

// foretell records a program and measures it and its twin in turns, and compares.
func (r *runner) foretell(t *testing.T, n int, s *scenario, tw *twin) *foretold {
	t.Helper()
	name := fmt.Sprintf("s%02d", n)
	o, m := r.kept(t, name)
	if m == nil {
		o, m = r.measure(t, s, tw)
	}
	if r.f.keep != "" {
		folder := filepath.Join(r.f.keep, name)
		if err := errors.Join(o.save(folder), m.keep(folder)); err != nil {
			t.Fatal(err)
		}
	}
	tl := timeline.Build(o.recording)
	study := whatif.New(tl, tl.Index.Threads())
	v := &foretold{
		number: n, scenario: s, Prediction: study.Predict(tw.edits...), Measured: m.speedup(), Watched: m.watched(), Tries: len(m.Recorded), Cost: study.Recording(),
		Replay: study.Error(), Learned: study.Learned(), Unexplained: study.Unexplained(),
	}
	v.Least, v.Most = m.spread()
	t.Logf("%s: %s: foretold %.2f (%.2f to %.2f), measured %.2f (%.2f to %.2f), off by %+.1f%%, while recorded %.0f%% %s", s.name, v.Plan, v.Speedup, v.Low, v.High,
		v.Measured, v.Least, v.Most, 100*v.off(), 100*v.Watched, v.mark())
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
	if err != nil {
		t.Fatal(err)
	}
	return o, m
}

// measure runs a program and its twin in turns, without a daemon, and between two halves of these records the program.
func (r *runner) measure(t *testing.T, s *scenario, tw *twin) (observation, *turns) {
	t.Helper()
	s = s.sharing(filepath.Join(t.TempDir(), "rates"))
	after := tw.fixed(s)
	program := r.bench.begin(t, s)
	defer program.end()
	program.signal(t, syscall.SIGSTOP)
	fixed := r.bench.begin(t, &after)
	defer fixed.end()
	fixed.signal(t, syscall.SIGSTOP)
	m := &turns{Pairs: alternate(t, program, fixed, rounds/2)}
	program.signal(t, syscall.SIGCONT)
	list := r.recordings(t, program, m)
	program.signal(t, syscall.SIGSTOP)
	m.Pairs = append(m.Pairs, alternate(t, program, fixed, rounds/2)...)
	return observation{list[m.nearest()], &truth{}}, m
}

// recordings records a program, again where its pace was not that of its turns.
func (r *runner) recordings(t *testing.T, p *party, m *turns) (list []*record.Recording) {
	t.Helper()
	w := r.bench.watch(t, p)
	defer w.daemon.Stop()
	for {
		began, from := p.done(t), time.Now()
		rec, _ := w.take()
		pace := rate(timeline.Build(rec))
		if p.s.cpuOnly {
			pace = float64(p.done(t)-began) / time.Since(from).Seconds()
		}
		list, m.Recorded = append(list, rec), append(m.Recorded, pace)
		if m.usual() || len(list) == mostTries || r.spare == 0 {
			return list
		}
		r.spare--
		t.Logf("%s: a recording at %.0f%% of the pace of the turns is made again", p.s.name, 100*pace/m.pace())
	}
}
