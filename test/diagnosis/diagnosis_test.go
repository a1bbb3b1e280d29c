package diagnosis

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/test/watch"
)

// goal is the share of scenarios whose dearest cause has to be found.
const goal = 0.95

// flags are those of `make bench-diagnosis` (scripts/bench-diagnosis.sh).
type flags struct {
	all          bool
	only         string
	keep, replay string
	doc          string
	daemon       string
	lanes        string
	pin          string
	windows      bool
}

// TestMain names the flags, so that `go test` knows them.
func TestMain(m *testing.M) {
	flag.Bool("all", false, "all scenarios, not the usual ones alone")
	flag.String("only", "", "the scenarios with these numbers, such as 3,17")
	flag.String("keep", "", "keep recordings and truths in this folder")
	flag.String("replay", "", "judge what is kept in this folder, and run nothing")
	flag.String("doc", "", "replace the tables between the markers of this file")
	flag.String("daemon", "", "the daemon; built where none is named")
	flag.Int("lanes", 1, "how many scenarios run at once, each on CPUs of its own")
	flag.Bool("windows", false, "record the GPU in windows, which is the daemon's default, in all scenarios")
	flag.String("pin", "", "fix sources at these levels, as samples=19,scheduling=off: what is lost at a level")
	os.Exit(m.Run())
}

func givenFlags() *flags {
	value := func(name string) string { return flag.Lookup(name).Value.String() }
	return &flags{
		all: value(
			"all",
		) == "true", only: value("only"), keep: value("keep"), replay: value("replay"), doc: value("doc"), daemon: value("daemon"),
		lanes: value("lanes"), pin: value("pin"), windows: value("windows") == "true",
	}
}

// TestDiagnosis runs programs with planted causes under the real daemon, and asks for the causes.
func TestDiagnosis(t *testing.T) {
	f := givenFlags()
	observe, lanes := replayed(f.replay), []lane{{}}
	if f.replay == "" {
		watch.NeedRoot(t)
		lanes = f.divide(t)
		b := newBench(t, f.daemon)
		b.pin = f.pin
		observe = b.observe
	}
	jobs := f.jobs(nil)
	if len(jobs) == 0 {
		t.Fatalf("-only %q chooses no scenario: name them by their numbers, as 3,21", f.only)
	}
	all := sweep(t, lanes, jobs, func(t *testing.T, l *lane, j *job) *verdict {
		t.Helper()
		return f.one(t, j, func(t *testing.T, s *scenario) observation { t.Helper(); return observe(t, l, s) })
	}, func(all []*verdict) { f.document(t, diagnosisSection, diagnosisDocument(all, len(jobs))) })
	finish(t, all, len(jobs))
}

// divide makes the lanes that are asked for.
func (f *flags) divide(t *testing.T) []lane {
	t.Helper()
	n, err := strconv.Atoi(f.lanes)
	must.NoError(t, err)
	lanes, err := newLanes(n)
	must.NoError(t, err)
	for i := range lanes {
		if lanes[i].cpus != nil {
			t.Logf("lane %d has CPUs %v", i, lanes[i].cpus)
		}
	}
	return lanes
}

// jobs are the scenarios that are asked for, and of which ok is true where it is given.
func (f *flags) jobs(ok func(*scenario) bool) (jobs []job) {
	for i, s := range scenarios() {
		if n := i + 1; f.chosen(n, &s) && (ok == nil || ok(&s)) {
			s.windows = s.windows || f.windows
			jobs = append(jobs, job{n, s})
		}
	}
	return jobs
}

// document writes what is known so far into a section of the file that was asked for.
func (f *flags) document(t *testing.T, section, tables string) {
	t.Helper()
	if f.doc == "" {
		return
	}
	must.NoError(t, writeSection(f.doc, section, machine(f.replay != "", f.lanes)+"\n\n"+tables))
}

// replayed observes what was kept.
func replayed(folder string) func(*testing.T, *lane, *scenario) observation {
	return func(t *testing.T, _ *lane, _ *scenario) observation {
		t.Helper()
		o, err := load(filepath.Join(folder, filepath.Base(t.Name())))
		if errors.Is(err, fs.ErrNotExist) {
			t.Skip("not kept")
		}
		must.NoError(t, err)
		return o
	}
}

func (f *flags) chosen(n int, s *scenario) bool {
	if f.only != "" {
		return slices.Contains(strings.Split(f.only, ","), strconv.Itoa(n))
	}
	return f.all || f.replay != "" || s.usual
}

// one observes and judges a scenario, again where the machine made something else of it.
func (f *flags) one(t *testing.T, j *job, observe func(*testing.T, *scenario) observation) *verdict {
	t.Helper()
	s := &j.s
	var v *verdict
	for try := range 3 {
		o := observe(t, s)
		if f.keep != "" {
			must.NoError(t, o.save(filepath.Join(f.keep, filepath.Base(t.Name()))))
		}
		v = judge(s, o)
		v.number = j.number
		if !v.disturbed() || f.replay != "" {
			break
		}
		t.Logf(
			"try %d: %s was to be dearest, and truly it was %s; next %s, %.0f%% of it; the GPU was idle for %.1f%%",
			try+1,
			or(s.want, "none"),
			or(v.Planted, "none"),
			v.Second,
			100*v.Rival,
			100*v.Idle/v.Covered,
		)
	}
	t.Logf("%s: truly %s %s, found %s %s (%s), GPU idle %.1f%%, seen %.1f%% %s",
		s.name, or(v.Planted, "none"), ms(v.True), or(v.Found, "none"), ms(v.Cost), v.Class,
		100*v.Idle/max(1, v.Covered), 100*v.Seen/max(1, v.Covered), v.mark())
	for _, note := range v.Notes {
		t.Log("    " + note)
	}
	return v
}

func finish(t *testing.T, all []*verdict, asked int) {
	t.Helper()
	if len(all) == 0 {
		return
	}
	fmt.Print(tables(all, asked))
	s := scoreOf(all)
	if float64(s.right) < goal*float64(s.all) {
		t.Errorf("the dearest cause is right in %d of %d scenarios, which is less than %.0f%%",
			s.right, s.all, 100*goal)
	}
	if s.accused > 0 {
		t.Errorf("%d healthy programs are accused of something", s.accused)
	}
}
