package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/summary"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/report/document"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

func text(t *testing.T, m *Model, o TextOptions) []byte {
	t.Helper()
	var out bytes.Buffer
	must.NoError(t, Text(&out, m, o))
	return out.Bytes()
}

// worded are the scenarios whose words are kept, too: one of each kind of report. A change of wording then touches few
// files, and what is true of all words has tests of its own.
var worded = []string{"answer_host_sync", "answer_python_work", "cpu_gil_fight", "decode", "gpu_windows", "losses"}

func TestGolden(t *testing.T) {
	for _, sc := range scenarios() {
		t.Run(sc.name, func(t *testing.T) {
			m := New(sc.rec)
			var md, js bytes.Buffer
			must.NoError(t, JSON(&js, m))
			goldenJSON(t, sc.name+".json", js.Bytes())
			if !slices.Contains(worded, sc.name) {
				return
			}
			golden(t, sc.name+".txt", text(t, m, TextOptions{Rows: sc.rows}))
			must.NoError(t, Markdown(&md, m))
			golden(t, sc.name+".md", md.Bytes())
		})
	}
}

// TestReportIsAPureFunction makes each model twice: an order that comes from a map would differ.
func TestReportIsAPureFunction(t *testing.T) {
	for _, sc := range scenarios() {
		for range 3 {
			if diff := cmp.Diff(New(sc.rec), New(sc.rec), cmpopts.IgnoreUnexported(Model{})); diff != "" {
				t.Fatalf("%s: two models of one recording differ:\n%s", sc.name, diff)
			}
		}
	}
}

func TestTextFitsItsWidth(t *testing.T) {
	for _, sc := range scenarios() {
		for _, width := range []int{80, 120, 200} {
			for line := range strings.Lines(string(text(
				t, New(sc.rec), TextOptions{Style: document.Style{Width: width}},
			))) {
				line = strings.TrimSuffix(line, "\n")
				if n := utf8.RuneCountInString(line); n > width && !isExample(line) {
					t.Errorf("%s at %d: %d characters: %q", sc.name, width, n, line)
				}
				if strings.TrimRight(line, " ") != line {
					t.Errorf("%s at %d: spaces at the end of %q", sc.name, width, line)
				}
			}
		}
	}
}

// isExample reports whether a line is one of the examples of the table of causes, which are kept as they are.
func isExample(line string) bool {
	for _, c := range slices.Concat(cause.All(), cause.On(2)) { // the recordings are of a host with 2 CPUs
		for _, ch := range c.Changes {
			if slices.Contains(strings.Split(ch.Example, "\n"), strings.TrimPrefix(line, "    ")) {
				return true
			}
		}
	}
	return false
}

func TestNarrowTerminalStillShowsTheFunctions(t *testing.T) {
	got := string(text(t, New(decode().Recording()), TextOptions{Style: document.Style{Width: 10}}))
	if !strings.Contains(got, "cudaStreamSync") {
		t.Errorf("no function in:\n%s", got)
	}
}

// screenLines is how many lines a short report may have at 100 columns.
const screenLines = 40

// TestShortReportFitsAScreen: it is the beginning of the full one, and says where the rest is.
func TestShortReportFitsAScreen(t *testing.T) {
	for _, sc := range scenarios() {
		m := New(sc.rec)
		style := document.Style{Width: 100}
		short, full := text(t, m, TextOptions{Short: true, Style: style}), text(t, m, TextOptions{Style: style})
		lines := strings.Split(strings.TrimRight(string(short), "\n"), "\n")
		if len(lines) > screenLines {
			t.Errorf("%s has %d lines:\n%s", sc.name, len(lines), short)
		}
		end := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "--full has the rest") })
		if end < 0 || !strings.HasPrefix(string(full), strings.Join(lines[:end-1], "\n")) {
			t.Errorf(
				"%s: the short report is not the beginning of the full one, or says not where that is:\n%s",
				sc.name,
				short,
			)
		}
	}
}

func TestColorChangesNoWord(t *testing.T) {
	m := New(losses().Recording())
	colored := string(text(t, m, TextOptions{Style: document.Style{Color: true}}))
	if !strings.Contains(colored, "\x1b[") {
		t.Error("no colour")
	}
	if plain := regexp.MustCompile(`\x1b\[[0-9;]*m`).ReplaceAllString(colored, ""); plain != string(
		text(t, m, TextOptions{}),
	) {
		t.Error("colour changes the text")
	}
}

func TestNothingOfTheTargetIsExecuted(t *testing.T) {
	m := New(hostile().Recording())
	for _, r := range string(text(t, m, TextOptions{})) {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Fatalf("the text holds %U", r)
		}
	}
	var md bytes.Buffer
	must.NoError(t, Markdown(&md, m))
	for _, bad := range []string{"<script", "\n# Heading", "[x](", "\x1b", "*bold*\n"} {
		if strings.Contains(md.String(), bad) {
			t.Errorf("the Markdown holds %q", bad)
		}
	}
}

func TestJSONComesBack(t *testing.T) {
	for _, sc := range scenarios() {
		m := New(sc.rec)
		var got Model
		d := json.NewDecoder(bytes.NewReader(asJSON(t, m)))
		d.DisallowUnknownFields()
		if err := d.Decode(&got); err != nil {
			t.Fatalf("%s: %v", sc.name, err)
		}
		// The numbers of causes have a meaning in this program only: JSON has their keys. How long each iteration took
		// is for diff.
		if diff := cmp.Diff(
			m, &got, cmpopts.IgnoreFields(diagnose.Part{}, "Cause"),
			cmpopts.IgnoreFields(diagnose.Iteration{}, "Durations", "Starts", "PID"), cmpopts.IgnoreUnexported(Model{}),
		); diff != "" {
			t.Errorf("%s: %s", sc.name, diff)
		}
	}
}

// TestJSONHasNoNull holds that whoever reads the JSON can go through every list; null is for iterations that were not
// found.
func TestJSONHasNoNull(t *testing.T) {
	for _, sc := range scenarios() {
		var out bytes.Buffer
		must.NoError(t, JSON(&out, New(sc.rec)))
		if regexp.MustCompile(`(?m)[:\[] *null,?$|^ *null,?$`).
			MatchString(strings.ReplaceAll(out.String(), `"iterations": null`, "")) {
			t.Errorf("%s: a null in the JSON", sc.name)
		}
	}
}

func TestDoubtsComeWorstFirst(t *testing.T) {
	var got []string
	for _, d := range New(losses().Recording()).Doubts {
		got = append(got, string(d.Severity)+" "+string(d.Reason))
	}
	want := []string{
		"error ring_full", "warning late_probe", "info overwritten", "info argument_fault",
		"info expensive_point", "info unlisted_process",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("doubts (-want +got):\n%s", diff)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

var errBroken = errors.New("no space left on device")

func TestWriteErrorsAreReturned(t *testing.T) {
	m := New(decode().Recording())
	for name, err := range map[string]error{
		"text": Text(brokenWriter{}, m, TextOptions{}), "markdown": Markdown(brokenWriter{}, m),
		"json": JSON(brokenWriter{}, m),
	} {
		if !errors.Is(err, errBroken) {
			t.Errorf("%s: %v, want the writer's error", name, err)
		}
	}
}

// A server that starts a process for each request must not fill the report with those.
func TestProcessesThatEnded(t *testing.T) {
	m := &Model{Target: targetModel{PID: 1}}
	m.Summary.Processes = []summary.Process{{PID: 1, Comm: "server", Died: 5}, {PID: 2, Parent: 1, Comm: "worker"}}
	for i := range uint32(30) {
		m.Summary.Processes = append(m.Summary.Processes,
			summary.Process{PID: 100 + i, Parent: 1, Comm: "child", Died: 7, Count: uint64(i)})
	}
	m.Summary.Window = summary.Window{To: 10}
	table := processTable(m)
	if len(table.Rows) != 2+maxEnded {
		t.Fatalf("%d rows, want the server, the worker and %d children", len(table.Rows), maxEnded)
	}
	if first := table.Rows[2][1]; first != "120" { // the last ten have the most operations
		t.Errorf("the first child listed is %s, want 120", first)
	}
	if want := "And 20 more that ended, with 190 operations"; !strings.Contains(table.Note, want) {
		t.Errorf("the note is %q, want %q", table.Note, want)
	}
	m.Summary.Processes = m.Summary.Processes[:2+maxEnded]
	if table = processTable(m); table.Note != "" || len(table.Rows) != 2+maxEnded {
		t.Errorf("%d rows and the note %q, want all and none", len(table.Rows), table.Note)
	}
}

// TestSourceThatWasOff: a report says which source was off for how long, why, and of which time its rates are.
func TestSourceThatWasOff(t *testing.T) {
	rec := decode().Recording()
	from, to := rec.Meta.From, rec.Meta.To
	on := from + (to-from)/4
	rec.Meta.Requests = []recording.Request{{
		Number: 1, PID: rec.Meta.Target, Received: from + 1, End: from + 1000, Status: 200, Outcome: "complete",
		Route: "/v1/completions",
	}}
	rec.Meta.Overhead = &recording.Overhead{Target: rec.Meta.Target, Budget: 0.02, Sources: []recording.OverheadSource{{
		Name: recording.RequestsSource, Level: recording.LevelOff, Index: 1, Reason: "watching took 5.0% of its time",
		Loses: "requests", Paused: []recording.Pause{{From: on, To: to}},
		Shares: []recording.LevelShare{{Level: "on", Share: 0.25}, {Level: recording.LevelOff, Share: 0.75}},
	}}}
	var out bytes.Buffer
	must.NoError(t, Text(&out, New(rec), TextOptions{}))
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"A source was off for a part of the time, to keep watching within its budget (1; requests). 75.0% of the time",
		"rates and requests at a time refer to that time",
		"on 25.0%, off 75.0%; missing: requests; watching took 5.0% of its time",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it lacks %q:\n%s", want, &out)
		}
	}
}

// TestKindsOfSteps: each kind of steps is a row, what is not known is left empty, and names from a recording cannot
// break a line.
func TestKindsOfSteps(t *testing.T) {
	works := 0.25
	m := &Model{}
	if stepsText(m) != "" {
		t.Error("a text without iterations")
	}
	m.Diagnosis.Iterations = &diagnose.Iteration{Kinds: []diagnose.StepKind{
		{Name: "1 graph launch", Count: 120, Time: 600e6, Share: 0.6, P50: 5e6, P99: 6e6, Graphs: 1},
		{
			Name:     "219 launches\x1b and no graph",
			Count:    2,
			Time:     24e6,
			Share:    0.4,
			Launches: 219,
			GPU:      &works,
			Outside:  true,
		},
	}}
	want := "60.0% of the time in 120 steps of 1 graph launch (p50 5.00 ms); " +
		"40.0% of the time in 2 steps of 219 launches"
	if got := stepsText(m); !strings.HasPrefix(got, want) || strings.Contains(got, "\x1b") ||
		!strings.HasSuffix(got, "which fall out of the CUDA graphs") {
		t.Errorf("text %q", got)
	}
	rows := stepsTable(m.Diagnosis.Iterations.Kinds).Rows
	if len(rows) != 2 || rows[0][8] != "" || rows[1][8] != "25.0%" || rows[1][4] != "" || rows[0][9] != "" {
		t.Errorf("rows %+v", rows)
	}
}

// TestPageHeadings: a page promises no more than the terminal: without a verdict nothing is to be changed, and what is
// broken down is the main thread's time.
func TestPageHeadings(t *testing.T) {
	for _, c := range []struct{ in, heading, went string }{
		{"answer_not_enough", "What was seen, without a verdict", "Where the main thread's time went"},
		{"answer_left", "What is left to gain", "Where the time went"},
		{"answer_worker", "What to change, most time won back first", "Where the time went"},
	} {
		for _, s := range answerScenarios() {
			if s.name != c.in {
				continue
			}
			if in := htmlInput(New(s.rec)); in.Heading != c.heading || in.Went != c.went {
				t.Errorf("%s: %q, %q", c.in, in.Heading, in.Went)
			}
		}
	}
}

// TestPageIterations: the page shares an iteration out as the terminal does.
func TestPageIterations(t *testing.T) {
	some := 0
	for _, s := range answerScenarios() {
		m := New(s.rec)
		each, ok := perIteration(m)
		if in := htmlInput(m); ok != (in.Iteration > 0) || ok && in.Iteration != uint64(each) {
			t.Errorf("%s: %d ns an iteration, want %v (%v)", s.name, in.Iteration, each, ok)
		}
		if ok && uint64(each) != m.Diagnosis.Iterations.P50 {
			some++
		}
	}
	if some == 0 {
		t.Error("no scenario whose iterations differ from their median")
	}
}
