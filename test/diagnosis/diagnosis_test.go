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
}

// TestMain names the flags, so that `go test` knows them.
func TestMain(m *testing.M) {
	flag.Bool("all", false, "all scenarios, not the usual ones alone")
	flag.String("only", "", "the scenarios with these numbers, such as 3,17")
	flag.String("keep", "", "keep recordings and truths in this folder")
	flag.String("replay", "", "judge what is kept in this folder, and run nothing")
	flag.String("doc", "", "write the tables into this file")
	flag.String("daemon", "", "the daemon; built where none is named")
	os.Exit(m.Run())
}

func givenFlags() *flags {
	value := func(name string) string { return flag.Lookup(name).Value.String() }
	return &flags{
		all: value("all") == "true", only: value("only"), keep: value("keep"), replay: value("replay"), doc: value("doc"), daemon: value("daemon"),
	}
}

// TestDiagnosis runs programs with planted causes under the real daemon, and asks for the causes.
func TestDiagnosis(t *testing.T) {
	f := givenFlags()
	observe := replayed(f.replay)
	if f.replay == "" {
		watch.NeedRoot(t)
		observe = newBench(t, f.daemon).observe
	}
	var all []*verdict
	for i, s := range scenarios() {
		if n := i + 1; f.chosen(n, &s) {
			t.Run(fmt.Sprintf("s%02d", n), func(t *testing.T) { // a neutral name: it is part of paths
				if v := f.one(t, n, &s, observe); v != nil {
					all = append(all, v)
				}
			})
		}
	}
	finish(t, f, all)
}

// replayed observes what was kept.
func replayed(folder string) func(*testing.T, *scenario) observation {
	return func(t *testing.T, _ *scenario) observation {
		t.Helper()
		o, err := load(filepath.Join(folder, filepath.Base(t.Name())))
		if errors.Is(err, fs.ErrNotExist) {
			t.Skip("not kept")
		}
		if err != nil {
			t.Fatal(err)
		}
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
func (f *flags) one(t *testing.T, n int, s *scenario, observe func(*testing.T, *scenario) observation) *verdict {
	t.Helper()
	var v *verdict
	for try := range 3 {
		o := observe(t, s)
		if f.keep != "" {
			if err := o.save(filepath.Join(f.keep, fmt.Sprintf("s%02d", n))); err != nil {
				t.Fatal(err)
			}
		}
		v = judge(s, o)
		v.number = n
		if !v.disturbed() || f.replay != "" {
			break
		}
		t.Logf("try %d: %s was to be dearest, and truly it was %s; next %s, %.0f%% of it; the GPU was idle for %.1f%%", try+1, or(s.want, "none"), or(v.Planted, "none"), v.Second, 100*v.Rival, 100*v.Idle/v.Covered)
	}
	t.Logf("%s: truly %s %s, found %s %s (%s), GPU idle %.1f%%, seen %.1f%% %s", s.name, or(v.Planted, "none"), ms(v.True), or(v.Found, "none"), ms(v.Cost), v.Class,
		100*v.Idle/max(1, v.Covered), 100*v.Seen/max(1, v.Covered), v.mark())
	for _, note := range v.Notes {
		t.Log("    " + note)
	}
	return v
}

func finish(t *testing.T, f *flags, all []*verdict) {
	t.Helper()
	if len(all) == 0 {
		return
	}
	s := scoreOf(all)
	text := table(all) + "\n" + confusion(all) + "\n" + s.String() + "\n"
	fmt.Print(text)
	if f.doc != "" {
		if err := os.WriteFile(f.doc, []byte(page(text)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if float64(s.right) < goal*float64(s.all) {
		t.Errorf("the dearest cause is right in %d of %d scenarios, which is less than %.0f%%", s.right, s.all, 100*goal)
	}
	if s.accused > 0 {
		t.Errorf("%d healthy programs are accused of something", s.accused)
	}
}
