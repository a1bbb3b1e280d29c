package e2e

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/report/diff"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// shell runs inferscope in a folder, where no daemon is to be reached.
type shell struct {
	t   *testing.T
	dir string
}

// run returns what a command wrote and its exit code.
func (s shell) run(args ...string) (stdout, stderr string, code int) {
	s.t.Helper()
	cmd := exec.Command(program(s.t, "inferscope"), args...)
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), "INFERSCOPE_SOCKET="+filepath.Join(s.dir, "none.sock"))
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	return out.String(), complaint.String(), cmd.ProcessState.ExitCode()
}

// does runs a command that must do well, and returns its standard output.
func (s shell) does(args ...string) string {
	s.t.Helper()
	out, complaint, code := s.run(args...)
	if code != 0 {
		s.t.Fatalf("inferscope %q: %d %s", args, code, complaint)
	}
	return out
}

func (s shell) path(name string) string { return filepath.Join(s.dir, name) }

func (s shell) read(name string) []byte {
	s.t.Helper()
	b, err := os.ReadFile(s.path(name))
	must.NoError(s.t, err)
	return b
}

func (s shell) write(name string, text []byte) {
	s.t.Helper()
	must.NoError(s.t, os.WriteFile(s.path(name), text, 0o600))
}

// TestEveryCommandOnARecording records a program on the simulated GPU, all of its GPU activity, holds what is recorded
// against the truth, and then gives the recording to every command that reads one, without a daemon.
func TestEveryCommandOnARecording(t *testing.T) {
	v := cudasim.Start(
		t,
		cudasim.Options{},

		"until { h2d 65536 pinned async; launch 10 kernel=gemm_us50; launch 5 kernel=softmax_us20; sync; d2h 4096; "+
			"sleep 1ms }",
	)
	d := startDaemon(t, v.PID)
	d.waitAgent(v.PID, "running")
	s := shell{t, t.TempDir()}
	if _, complaint, code := d.inferscope(
		"record", "--pid", fmt.Sprint(v.PID), "--for", "3s", "--gpu", "continuous", "-o", s.path("t.isc"),
	); code != 0 {
		t.Fatalf("record: %d %s", code, complaint)
	}
	truth := v.Truth()
	d.stop()
	unharmed(t, v)
	rec, err := archive.Read(s.path("t.isc"), archive.DefaultLimits())
	must.NoError(t, err)
	recordedAll(t, rec, v.PID, truth)
	kernels := shown(rec, kernelsIn(rec, v.PID, ""))

	t.Run("info, ls", func(t *testing.T) { looks(shell{t, s.dir}, rec, len(kernelsIn(rec, v.PID, ""))) })
	t.Run("pack, unpack, analyze", func(t *testing.T) { packs(shell{t, s.dir}) })
	t.Run("export", func(t *testing.T) { exports(shell{t, s.dir}, rec, kernels) })
	t.Run("import", func(t *testing.T) { imports(shell{t, s.dir}, kernels) })
	t.Run("whatif", func(t *testing.T) { predicts(shell{t, s.dir}) })
	t.Run("bad input", func(t *testing.T) { refuses(shell{t, s.dir}) })
}

// shown counts the kernels of which a part lies in the recording and in a window of GPU activity: the timeline leaves
// others out, and so does what is made from it.
func shown(rec *recording.Recording, kernels []ran) (n int) {
	for _, k := range kernels {
		for _, w := range rec.Meta.GPU.Windows {
			if w.Activity && k.start <= min(w.To, rec.Meta.To) && k.end >= max(w.From, rec.Meta.From) {
				n++
				break
			}
		}
	}
	return n
}

// recordedAll holds the kernels of a recording against what ran, and that GPU activity was recorded for as long as was
// asked: a recording may begin before that.
func recordedAll(t *testing.T, rec *recording.Recording, pid int, truth *cudasim.Truth) {
	t.Helper()
	const margin = 100_000_000 // ns: what runs when the recording is cut is recorded later
	seen, all := kernelsIn(rec, pid, ""), kernelsOf(truth, "", 0, now())
	covered, compared := uint64(0), 0
	for _, w := range rec.Meta.GPU.Windows {
		from, to := max(w.From, rec.Meta.From), min(w.To, rec.Meta.To-margin)
		if !w.Activity || to <= from {
			continue
		}
		covered += to - from
		want := kernelsOf(truth, "", from, to)
		equalKernels(t, inside(seen, want, all, from, to), want)
		compared += len(want)
	}
	whole(t, rec)
	if covered < 2_000_000_000 || compared < 1000 { // windows alone would be a tenth of the time
		t.Errorf("GPU activity was recorded for %d ns of 3 s, %d kernels", covered, compared)
	}
	t.Logf("%d kernels in %.2f s of GPU activity; the recording has %.2f s",
		compared, float64(covered)/1e9, float64(rec.Meta.To-rec.Meta.From)/1e9)
}

// looks holds what the recording says of itself against it. kernels are all that it has a record of: a window ends when
// its callbacks go off, and until its kinds go off, 20 ms later, kernels still have records.
func looks(s shell, rec *recording.Recording, kernels int) {
	s.t.Helper()
	out := s.does("info", "--verify", "t.isc")
	for _, text := range []string{
		fmt.Sprintf("pid %d", rec.Meta.Target), "complete", "0 missing, 0 damaged", "continuous",
		fmt.Sprint(len(rec.Events)),
	} {
		if !strings.Contains(out, text) {
			s.t.Errorf("info lacks %q:\n%s", text, out)
		}
	}
	var manifest archive.Manifest
	if err := json.Unmarshal([]byte(s.does("info", "--json", "t.isc")), &manifest); err != nil ||
		manifest.Target != rec.Meta.Target ||
		manifest.Events() != len(rec.Events) {
		s.t.Errorf("info --json: %v %+v", err, manifest)
	}
	var tables []struct {
		Name string
		Rows int
	}
	must.NoError(s.t, json.Unmarshal([]byte(s.does("ls", "--json", "t.isc")), &tables))
	rows := map[string]int{}
	for _, table := range tables {
		rows[table.Name] = table.Rows
	}
	if rows["kernels"] != kernels || rows["copies"] == 0 || rows["calls"] == 0 || rows["kernel_names"] != 2 {
		s.t.Errorf("ls --json: %v, and %d kernels were recorded", rows, kernels)
	}
}

func packs(s shell) {
	s.t.Helper()
	s.does("pack", "t.isc")
	s.does("unpack", "t.isc.zip", "-o", "u.isc")
	first := s.does("analyze", "t.isc", "--format", "json")
	for _, place := range []string{"t.isc.zip", "u.isc"} {
		if s.does("analyze", place, "--format", "json") != first {
			s.t.Errorf("the report of %s is another", place)
		}
	}
	for _, text := range []string{"gemm\\_us50", "Latency"} {
		if out := s.does("analyze", "t.isc", "--format", "markdown"); !strings.Contains(out, text) {
			s.t.Errorf("the report lacks %q: %.2000s", text, out)
		}
	}
}

// exports looks into each format.
func exports(s shell, rec *recording.Recording, kernels int) {
	s.t.Helper()
	for _, name := range []string{"t.perfetto-trace", "t.pt.trace.json", "t.pb.gz", "t.jsonl", "t.folded", "t.csv"} {
		s.does("export", "t.isc", "-o", name)
	}
	if again := s.does("export", "t.isc", "--to", "perfetto", "-o", "-"); again != string(s.read("t.perfetto-trace")) ||
		again == "" ||
		again[0] != 0x0a { // field 1, of packets
		s.t.Error("the Perfetto trace on standard output is another one than in the file")
	}
	if rows, err := csv.NewReader(bytes.NewReader(s.read("t.csv"))).ReadAll(); err != nil || len(rows) != kernels+1 {
		s.t.Errorf("csv: %d rows for %d kernels, %v", len(rows), kernels, err)
	}
	var trace struct{ TraceEvents []struct{ Cat, Name string } }
	if err := json.Unmarshal(s.read("t.pt.trace.json"), &trace); err != nil {
		s.t.Error(err)
	}
	cats := map[string]int{}
	for _, e := range trace.TraceEvents {
		cats[e.Cat]++
	}
	if cats["kernel"] != kernels || cats["gpu_memcpy"] == 0 || cats["cuda_driver"] == 0 {
		s.t.Errorf("Kineto: %v, and %d kernels were recorded", cats, kernels)
	}
	funcs := map[string]int{}
	for lines := bufio.NewScanner(bytes.NewReader(s.read("t.jsonl"))); lines.Scan(); {
		var e struct {
			TS   json.Number
			Func string
			PID  uint32
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil || e.TS == "" || e.PID == 0 {
			s.t.Fatalf("jsonl: %v in %s", err, lines.Bytes())
		}
		funcs[e.Func]++
	}
	if funcs["gemm_us50"]+funcs["softmax_us20"] != kernels {
		s.t.Errorf("jsonl: %v, and %d kernels were recorded", funcs, kernels)
	}
	p, err := profile.ParseData(s.read("t.pb.gz"))
	if err != nil || len(p.SampleType) != 7 || p.CheckValid() != nil {
		s.t.Fatalf("pprof: %v", err)
	}
	samples, taken := int64(0), int64(0)
	for _, x := range p.Sample {
		samples += x.Value[0]
	}
	for i := range rec.Events {
		if e := &rec.Events[i]; e.Kind == event.Sample && event.SampleCause(e.Func) == event.Clock {
			taken++
		}
	}
	folded := int64(0)
	for line := range strings.Lines(string(s.read("t.folded"))) {
		var n int64
		if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &n); err != nil {
			s.t.Fatalf("folded: %q", line)
		}
		folded += n
	}
	if samples != taken || folded != taken || taken == 0 {
		s.t.Errorf("%d samples were taken, pprof has %d and the folded stacks %d", taken, samples, folded)
	}
}

func imports(s shell, kernels int) {
	s.t.Helper()
	s.does("export", "t.isc", "-o", "again.pt.trace.json")
	s.does("import", "again.pt.trace.json", "-o", "again.isc")
	rec, err := archive.Read(s.path("again.isc"), archive.DefaultLimits())
	if err != nil || len(kernelsIn(rec, int(rec.Meta.Target), "")) != kernels {
		s.t.Errorf("%d kernels became others: %v", kernels, err)
	}
	var c diff.Comparison
	if err := json.Unmarshal([]byte(s.does("diff", "--json", "t.isc", "again.pt.trace.json")), &c); err != nil ||
		len(c.Kernels) != 2 {
		s.t.Fatalf("diff: %v %+v", err, c)
	}
	for _, k := range c.Kernels {
		if k.Sure {
			s.t.Errorf("the same kernels differ: %+v", k)
		}
	}
	if out := s.does("diff", "t.isc", "t.isc"); !strings.Contains(out, "+0.0%") || strings.Contains(out, "* \n") {
		s.t.Errorf("a recording differs from itself:\n%s", out)
	}
}

func predicts(s shell) {
	s.t.Helper()
	var answer struct {
		Kind   string
		PID    uint32
		Causes []struct{ Plan string }
		After  *struct{}
	}
	if err := json.Unmarshal([]byte(s.does("whatif", "t.isc", "--json")), &answer); err != nil ||
		answer.Kind != "inferscope.whatif" ||
		answer.PID == 0 ||
		answer.After != nil {
		s.t.Errorf("whatif: %v %+v", err, answer)
	}
	if err := json.Unmarshal([]byte(s.does("whatif", "t.isc", "--json", "--kernel", "gemm*=2")), &answer); err != nil ||
		answer.After == nil {
		s.t.Errorf("whatif --kernel: %v %+v", err, answer)
	}
	for name, wanted := range map[string]clierror.Code{"nonsense": clierror.Usage, "gil": clierror.OK} {
		if _, complaint, code := s.run("whatif", "t.isc", "--without", name); code != int(wanted) ||
			!strings.Contains(complaint, fmt.Sprintf("nothing in this recording is called %q", name)) {
			s.t.Errorf("whatif --without %s: %d %s", name, code, complaint)
		}
	}
}

// refuses gives each command what it cannot read: what is wrong is said on standard error with what to do, nothing is
// written to standard output, and the exit code reports whether what was typed is wrong or what was found.
func refuses(s shell) {
	s.t.Helper()
	zip := s.read("t.isc.zip")
	s.write("cut.isc.zip", zip[:len(zip)/2])
	s.write("text", []byte("hello\n"))
	s.write("cut.json", s.read("again.pt.trace.json")[:5000])
	must.NoError(s.t, os.Mkdir(s.path("empty.isc"), 0o700))
	s.does("unpack", "t.isc.zip", "-o", "bad.isc")
	files, err := filepath.Glob(s.path("bad.isc/kernels/*.parquet"))
	if err != nil || len(files) == 0 {
		s.t.Fatal("no file of kernels", err)
	}
	damaged, err := os.ReadFile(files[0])
	must.NoError(s.t, err)
	damaged[len(damaged)/2] ^= 0xff
	must.NoError(s.t, os.WriteFile(files[0], damaged, 0o600))
	for _, reader := range []string{
		"analyze FILE", "export FILE --to csv -o -", "diff t.isc FILE", "diff FILE t.isc", "whatif FILE --json",
		"info FILE", "ls FILE", "info --verify FILE", "pack FILE -o x.zip", "unpack FILE -o x.isc",
		"import FILE -o x.isc",
	} {
		for _, file := range []struct {
			name string
			code clierror.Code
			says string
			by   string // the commands that look so far; "": all
		}{
			{"missing.isc", clierror.Usage, "no such file", ""},
			{"text", clierror.General, "text", ""},
			{"cut.isc.zip", clierror.General, "cut off or damaged", "analyze export diff whatif info ls unpack"},
			{"empty.isc", clierror.Usage, "it has no manifest.json", "analyze export diff whatif info ls pack"},
			{"bad.isc", clierror.General, "kernels/", "analyze export diff whatif info"},
			{"cut.json", clierror.General, "cut off", "analyze export diff whatif import"},
		} {
			name, _, _ := strings.Cut(reader, " ")
			if file.by != "" && !slices.Contains(strings.Fields(file.by), name) ||
				file.name == "bad.isc" && reader == "info FILE" || file.name == "text" && name == "pack" {
				continue
			}
			s.refuse(strings.ReplaceAll(reader, "FILE", file.name), file.code, file.says)
		}
	}
	for typed, says := range map[string]string{
		"export t.isc --to nonsense -o x":          "choose perfetto",
		"export t.isc -o x.unknown":                "implies no format",
		"export t.isc":                             "",
		"export t.isc t.isc --to csv -o x":         "see inferscope export --help",
		"export --to csv -o x":                     "nothing to export",
		"diff t.isc":                               "see inferscope diff --help",
		"diff t.isc t.isc --fail-over 5":           "percent",
		"diff t.isc t.isc --fail-over x":           "write it like 5%",
		"whatif t.isc --faster gemm":               "how many times faster",
		"whatif t.isc t.isc":                       "see inferscope whatif --help",
		"analyze":                                  "takes one file",
		"analyze t.isc --format pdf":               "pdf",
		"unpack t.isc.zip -o u.isc":                "is there",
		"pack text -o x.zip":                       "name a folder",
		"import again.pt.trace.json nonsense.json": "see inferscope import --help",
	} {
		s.refuse(typed, clierror.Usage, says)
	}
	s.refuse("export t.isc --to csv -o no/such/folder.csv", clierror.General, "choose a file in a directory")
}

func (s shell) refuse(typed string, code clierror.Code, says string) {
	s.t.Helper()
	out, complaint, got := s.run(strings.Fields(typed)...)
	if got != int(code) || out != "" && !strings.HasPrefix(typed, "info --verify") ||
		!strings.Contains(complaint, says) ||
		!strings.HasPrefix(complaint, "inferscope: ") ||
		strings.Count(complaint, "\n") < 2 {
		s.t.Errorf("%s: %d, want %d with %q: %.100q %s", typed, got, code, says, out, complaint)
	}
}

// TestDiffFailsOver: a program that became slower fails a comparison, and one that did not does not.
func TestDiffFailsOver(t *testing.T) {
	needs.Long(t)
	needs.Root(t, "it loads BPF programs and attaches probes")
	s := shell{t, t.TempDir()}
	for name, ms := range map[string]string{"before": "10", "same": "10", "slow": "15"} {
		s.write(
			"p.py",
			[]byte(
				"import time\nfrom inferscope import scope\nwhile True:\n  with scope('step'): time.sleep("+ms+"/1000)\n",
			),
		)
		cmd := exec.Command(python(t), s.path("p.py"))
		cmd.Env = append(os.Environ(), "PYTHONPATH="+absolute(t, "../../python"))
		must.NoError(t, cmd.Start())
		d := startDaemon(t, cmd.Process.Pid, "--gpu", "off")
		waitFor(t, "scopes", func() bool {
			rec := d.fetch(cmd.Process.Pid)
			return rec.Meta.GPU != nil && len(rec.Meta.GPU.Ranges) > 0
		})
		_, complaint, code := d.inferscope("record", "--for", "1s", "-o", s.path(name+".isc"))
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		d.stop()
		if code != 0 {
			t.Fatalf("record: %d %s", code, complaint)
		}
	}
	s.does("diff", "before.isc", "same.isc", "--fail-over", "20%")
	s.does("diff", "slow.isc", "before.isc", "--fail-over", "5%") // faster
	out, complaint, code := s.run("diff", "before.isc", "slow.isc", "--fail-over", "20%")
	if code != int(clierror.Regression) || !strings.Contains(complaint, "over the limit of 20.0%") ||
		!strings.Contains(out, "ranges named \"step\"") {
		t.Errorf("%d %s\n%s", code, complaint, out)
	}
}
