package diagnosis

import (
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/test/watch"
)

const (
	// window is what is recorded of a scenario: hundreds of steps of most.
	window = 3 * time.Second
	// windowsWindow is the same where the daemon records the GPU for 200 ms every 2 s (config's defaults): three of
	// these.
	windowsWindow = 7 * time.Second
	// warming is how long a daemon that is ready gets for the tables of its unwinder: 1 to 3 s after its start
	// (docs/architecture.md, "CPU samples and scheduling").
	warming = 2 * time.Second
	// ahead is the priority of the programs: what a daemon costs them is another test's.
	ahead = "-5"
)

// observation is what was recorded of a scenario, and what truly happened.
type observation struct {
	recording *recording.Recording
	truth     *truth
}

// bench is what all scenarios of a run share.
type bench struct {
	paths        cudasim.Paths
	programs     string // folder of prog and libserving.so
	daemon       string
	python       string // "": there is none
	answer, http string // ports
	usual        group  // where processes are that nobody prefers
	truth        string // how much the simulator writes down: cudasim.Options.Level; where that is not all, programs write down nothing that they can do without
	pin          string // levels at which sources are fixed (--pin-level), with nothing governed; "": the daemon governs
	longer       int    // how many times as long as usual it records; 0: once
}

// newBench builds what is run, but a daemon that is there already.
func newBench(tb testing.TB, daemon string) *bench {
	tb.Helper()
	usual := forward(tb)
	if daemon == "" {
		daemon = watch.Build(tb, tb.TempDir())
	}
	b := &bench{paths: cudasim.Build(tb), daemon: daemon, answer: answers(tb), http: pages(tb), usual: usual}
	b.programs = filepath.Join(b.paths.Root, "build", "scenarios")
	out, err := exec.CommandContext(tb.Context(), "make", "-s", "-C",
		filepath.Join(b.paths.Root, "testdata", "scenarios"), "OUT="+b.programs, "CUDASIM="+b.paths.Sim).
		CombinedOutput()
	if err != nil {
		tb.Fatalf("make the scenarios' programs: %v\n%s", err, out)
	}
	// The interpreter itself: a wrapper script in its place would be the process that is watched.
	if out, err := exec.CommandContext(
		tb.Context(), "python3", "-c", "import sys; print(sys.executable)",
	).Output(); err == nil {
		b.python = strings.TrimSpace(string(out))
	}
	return b
}

// party is a program that runs, with those that take its CPUs away.
type party struct {
	s     *scenario
	v     *cudasim.Victim
	plans string // prefix of what its processes write down
	quota group
	hogs  []*cudasim.Victim
}

// begin starts a scenario.
func (b *bench) begin(t *testing.T, l *lane, s *scenario) *party {
	t.Helper()
	if s.python && b.python == "" {
		t.Skip("needs tool: no python3")
	}
	p := &party{s: s, plans: filepath.Join(t.TempDir(), "plan")}
	p.v = b.start(t, l, s, p.plans)
	p.quota, p.hogs = b.disturb(t, l, s, p.v)
	return p
}

// end ends it: another one runs without its hogs.
func (p *party) end() {
	p.v.Kill()
	for _, hog := range p.hogs {
		hog.Kill()
	}
}

// observe runs a scenario under a daemon of its own, and returns what was recorded of its middle.
func (b *bench) observe(t *testing.T, l *lane, s *scenario) observation {
	t.Helper()
	p := b.begin(t, l, s)
	rec, quota := b.record(t, p)
	p.end()
	phases, err := readPlans(p.plans)
	must.NoError(t, err)
	if len(phases) == 0 && s.want != "" && s.copies == "" && s.kernels == nil {
		t.Fatal("the program wrote down nothing of what it did")
	}
	o := observation{rec, newTruth(p.v.Truths(), phases)}
	o.truth.Quota = quota
	return o
}

// record records the middle of a program's run under a daemon of its own; quota is for how many ns of it its quota was
// used up.
func (b *bench) record(t *testing.T, p *party) (rec *recording.Recording, quota uint64) {
	t.Helper()
	w := b.watch(t, p)
	defer w.daemon.Stop()
	return w.take()
}

// watching is a program under a daemon of its own that is ready to record.
type watching struct {
	p      *party
	daemon *watch.Daemon
	asked  api.Window
}

// watch starts a daemon, and returns when it is ready.
func (b *bench) watch(t *testing.T, p *party) *watching {
	t.Helper()
	flags := []string{"--gpu", "continuous"}
	w := &watching{p: p, asked: api.Window{For: window, GPU: api.GPUContinuous}}
	if p.s.fine {
		flags = append(flags, "--cpu-sampling-frequency-hz", "499")
	}
	if p.s.windows || strings.HasPrefix(b.pin, "gpu windows") {
		flags, w.asked = nil, api.Window{For: windowsWindow}
	}
	if b.pin != "" {
		flags = append(flags, "--overhead-budget", "0", "--pin-level", b.pin)
	}
	w.asked.For *= time.Duration(max(1, b.longer))
	w.daemon = watch.StartBuilt(t, b.daemon, p.v.PID, flags...)
	if !p.s.cpuOnly {
		w.daemon.Until(
			"the agent to run",
			func() bool { return joined(w.daemon.Recording(p.v.PID, api.Window{Last: time.Second}), p.v.PID) },
		)
	}
	time.Sleep(warming)
	return w
}

// take records, again while the program got no CPU to use the GPU; quota is for how many ns of it the program's quota
// was used up.
func (w *watching) take() (rec *recording.Recording, quota uint64) {
	for end := time.Now().Add(watch.Timeout); ; {
		before, began := w.p.quota.throttled(), time.Now()
		rec = w.daemon.Recording(w.p.v.PID, w.asked)
		quota = uint64(
			float64(w.p.quota.throttled()-before) * float64(rec.Meta.To-rec.Meta.From) / float64(time.Since(began)),
		)
		if covers(w.p.s, rec) || time.Now().After(end) {
			return rec, quota
		}
	}
}

// covers reports whether a recording shows enough of the GPU to judge a scenario by.
func covers(s *scenario, rec *recording.Recording) bool {
	t := timeline.Build(rec)
	return coveredOf(s, gap.Build(t), t).Total() > 0
}

// start starts the program and waits until it has begun.
func (b *bench) start(t *testing.T, l *lane, s *scenario, plans string) *cudasim.Victim {
	t.Helper()
	program := []string{filepath.Join(b.programs, "prog")}
	if s.python {
		program = []string{b.python, filepath.Join(b.paths.Root, "testdata", "scenarios", "prog.py")}
	}
	if !s.neighbour {
		program = append([]string{"nice", "-n", ahead}, program...)
	}
	env := append([]string{"DATA=" + b.programs}, s.env...)
	if b.truth == "" || s.cpuOnly {
		env = append(env, "PLAN="+plans)
	}
	libraries := b.paths.LibraryPath(cudasim.Shape580) + ":" + b.programs
	v := cudasim.Start(t, cudasim.Options{
		Program: program, NoReady: true, Timeout: watch.Timeout, Level: b.truth,
		Env: append(env, "LD_LIBRARY_PATH="+libraries),
	})
	v.Send(
		strings.NewReplacer("{answer}", b.answer, "{http}", b.http, "{cpu}", strconv.Itoa(l.first())).Replace(s.script),
	)
	v.Send("go")
	if s.request > 0 {
		go s.ask(t.Context(), v.WaitLine("port"))
	}
	v.WaitLine("ready")
	return v
}

// disturb takes CPUs away from the program, where that is what is planted. It returns the group with its quota, the
// zero group where there is none, and the processes that compute.
func (b *bench) disturb(t *testing.T, l *lane, s *scenario, v *cudasim.Victim) (quota group, hogs []*cudasim.Victim) {
	t.Helper()
	for range s.hogs {
		hog := cudasim.Start(t, cudasim.Options{
			Program: []string{filepath.Join(b.programs, "prog")}, NoReady: true, Level: "off",
			Env: []string{"LD_LIBRARY_PATH=" + b.paths.LibraryPath(cudasim.Shape580)},
		})
		hog.Send(fmt.Sprintf("cpu %d; native 10000", l.first()))
		hog.Send("go")
		hog.WaitLine("ready")
		_ = b.usual.move(hog.PID)
		hogs = append(hogs, hog)
	}
	if s.neighbour { // at the same share as the kernel's own threads, which have to go on
		_ = b.usual.move(v.PID)
	}
	if s.quota == 0 {
		return group{}, hogs
	}
	quota, err := newGroup(t)
	if err == nil {
		err = errors.Join(quota.prefer(weight), quota.limit(s.quota), quota.move(v.PID))
	}
	if err != nil {
		t.Skipf("needs a cgroup with a quota: %v", err)
	}
	return quota, hogs
}

// joined reports whether the agent records in pid.
func joined(rec *recording.Recording, pid int) bool {
	return rec.Meta.GPU != nil &&
		slices.ContainsFunc(rec.Meta.GPU.Agents,
			func(a recording.Agent) bool { return int(a.PID) == pid && a.State == "running" })
}

// save keeps an observation in a folder, so that it can be judged again.
func (o *observation) save(folder string) (err error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("keep an observation: %w", err)
	}
	file, err := os.Create(filepath.Join(folder, "recording"))
	if err != nil {
		return fmt.Errorf("keep a recording: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if err := recording.WriteStream(
		file, o.recording.Meta, slices.Values([][]event.Event{o.recording.Events}),
	); err != nil {
		return fmt.Errorf("keep a recording: %w", err)
	}
	planted, err := os.Create(filepath.Join(folder, "truth"))
	if err != nil {
		return fmt.Errorf("keep the truth: %w", err)
	}
	defer func() { err = errors.Join(err, planted.Close()) }()
	return gob.NewEncoder(planted).Encode(o.truth)
}

// load reads what save kept.
func load(folder string) (observation, error) {
	var o observation
	file, err := os.Open(filepath.Join(folder, "recording"))
	if err != nil {
		return o, fmt.Errorf("open a kept recording: %w", err)
	}
	defer file.Close()
	if o.recording, err = recording.ReadStream(file, recording.DefaultLimits()); err != nil {
		return o, fmt.Errorf("read a kept recording: %w", err)
	}
	planted, err := os.Open(filepath.Join(folder, "truth"))
	if err != nil {
		return o, fmt.Errorf("open a kept truth: %w", err)
	}
	defer planted.Close()
	if err := gob.NewDecoder(planted).Decode(&o.truth); err != nil {
		return o, fmt.Errorf("read a kept truth: %w", err)
	}
	return o, nil
}
