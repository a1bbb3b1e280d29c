package profile_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/profile"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

const collecting = "[garbage collection]"

// build is a CPython to run: as it is, or stripped of all but its dynamic symbols.
type build struct {
	name string
	args []string // of exec.Command
	file string   // that holds the interpreter
}

// builds returns every CPython that this machine offers, and a stripped copy of each.
func builds(t *testing.T) []build {
	t.Helper()
	var all []build
	for _, python := range pythons() {
		name := filepath.Base(python)
		all = append(all, build{name: name, args: []string{python}})
		if b, ok := stripped(t, python); ok {
			all = append(all, b)
		}
	}
	if len(all) == 0 {
		t.Skip("no python3.N under $PATH, ~/.pyenv/versions or /opt")
	}
	return all
}

// stripped makes a stripped copy of the file that holds the interpreter, its program or its library.
func stripped(t *testing.T, python string) (build, bool) {
	t.Helper()
	strip, err := exec.LookPath("strip")
	if err != nil {
		return build{}, false
	}
	out, err := exec.Command(python, "-c", `import sys, sysconfig as s
v = s.get_config_var
print("\n".join([sys.executable, sys.prefix, sys.exec_prefix, str(v("Py_ENABLE_SHARED")), v("LIBDIR"), v("INSTSONAME") or ""]))`).Output()
	said := strings.Split(string(out), "\n")
	if err != nil || len(said) < 6 {
		t.Fatalf("%s does not say where it is: %v", python, err)
	}
	program, dir := said[0], t.TempDir()
	from, env := program, "PYTHONHOME="+said[1]+":"+said[2]
	if said[3] == "1" {
		from, env = filepath.Join(said[4], said[5]), "LD_LIBRARY_PATH="+dir
	}
	name := filepath.Base(from)
	if said[3] != "1" {
		name = filepath.Base(python) // "python3" may be asked for, and a link to it is what sys.executable is
	}
	to := filepath.Join(dir, name)
	must.Run(t, exec.Command(strip, "--strip-all", "-o", to, from))
	if said[3] != "1" {
		program = to
	}
	return build{
		name: filepath.Base(python) + " stripped",
		args: []string{"/usr/bin/env", env, program},
		file: to,
	}, true
}

func (b *build) start(t *testing.T, mode string) *victim {
	t.Helper()
	v := start(t, b.args[0], append(slices.Clone(b.args[1:]), "testdata/collect.py", mode)...)
	v.Line()
	if b.file == "" {
		return v
	}
	maps, err := os.ReadFile(filepath.Join("/proc", itoa(v.pid()), "maps"))
	if err != nil || !strings.Contains(string(maps), b.file) {
		t.Fatalf("it does not run the stripped copy %s: %v", b.file, err)
	}
	return v
}

// A thread that collects garbage says so whatever symbols its interpreter has, and one
// beside it does not.
func TestGarbageCollection(t *testing.T) {
	needs.Root(t, "it samples other processes")
	s := newSource(t, profile.Options{Hz: 199, OwnOnly: true})
	for _, b := range builds(t) {
		t.Run(b.name, func(t *testing.T) {
			if strings.HasPrefix(b.name, "python3.6") {
				t.Skip("CPython 3.6 keeps it in a static variable")
			}
			v := b.start(t, "collect")
			s.follow(v.pid())
			samples := s.untilThread(v.pid(), 100)
			if n := s.count(samples, []string{collecting, "collects", "main", "<module>"}); n < 90*len(samples)/100 {
				t.Errorf("%d of %d samples of the thread that collects say so", n, len(samples))
			}
			others := s.beside(v.pid(), 20)
			if n := s.count(others, nil); n > 0 {
				t.Errorf("%d of %d samples of the thread that does not collect say that it does", n, len(others))
			}
			v.Kill()
		})
	}
}

// beside waits for n samples of the other threads of a process, and returns all of them.
func (f *following) beside(pid uint32, n int) []event.Event {
	f.t.Helper()
	others := func(e []event.Event) []event.Event {
		return slices.DeleteFunc(slices.Clone(e), func(e event.Event) bool { return e.PID != pid || e.TID == pid })
	}
	f.until("samples of other threads", func(e []event.Event) bool { return len(others(e)) >= n })
	return others(f.events)
}

// count counts the samples with exactly these Python frames; nil: with a frame of a collection.
func (f *following) count(events []event.Event, want []string) int {
	n := 0
	for _, e := range events {
		got := names(f.stack(e), recording.PythonFrame)
		if want == nil && slices.Contains(got, collecting) || want != nil && slices.Equal(got, want) {
			n++
		}
	}
	return n
}

// Where a finaliser has let go of the GIL, another thread may be taken for the collector,
// but not while it runs Python code: that is most of the time of one that counts. Without
// that exception nearly all of its samples would say so (docs/limitations.md).
func TestOtherThreadDuringAFinaliser(t *testing.T) {
	s := newSource(t, profile.Options{Hz: 499, OwnOnly: true})
	v := start(t, pythonOrSkip(t), "testdata/collect.py", "finalise")
	v.Line()
	s.follow(v.pid())
	others := s.beside(v.pid(), 200)
	if n := s.count(others, nil); n > len(others)/2 {
		t.Errorf("%d of %d samples of a thread that counts say that it collects garbage", n, len(others))
	}
}
