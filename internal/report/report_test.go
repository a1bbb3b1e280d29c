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
	"github.com/inferscope/inferscope/internal/report/document"
)

func text(t *testing.T, m *Model, o TextOptions) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := Text(&out, m, o); err != nil {
		t.Fatal(err)
	}
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
			if err := JSON(&js, m); err != nil {
				t.Fatal(err)
			}
			goldenJSON(t, sc.name+".json", js.Bytes())
			if !slices.Contains(worded, sc.name) {
				return
			}
			golden(t, sc.name+".txt", text(t, m, TextOptions{Rows: sc.rows}))
			if err := Markdown(&md, m); err != nil {
				t.Fatal(err)
			}
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
	if err := Markdown(&md, m); err != nil {
		t.Fatal(err)
	}
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
		if err := JSON(&out, New(sc.rec)); err != nil {
			t.Fatal(err)
		}
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
