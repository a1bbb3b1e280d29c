package diagnosis

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestDocumentReplacesItsSectionOnly: what a person wrote around a section, and other sections, stay as they are.
func TestDocumentReplacesItsSectionOnly(t *testing.T) {
	other := beginMarker("other") + "\n\nkept\n\n" + endMarker("other")
	text := "# Title\n\nBefore.\n\n" + beginMarker(
		"x",
	) + "\n\n| old |\n\n" + endMarker("x") + "\n\nAfter.\n" + other + "\n"
	want := strings.Replace(text, "| old |", "| new |", 1)
	got, err := replaceSection(text, "x", "\n| new |\n")
	if err != nil || got != want {
		t.Fatalf("%v:\n%s\nwant\n%s", err, got, want)
	}
	if again, err := replaceSection(got, "x", "| new |"); err != nil || again != got {
		t.Errorf("%v: the same again changes the file:\n%s", err, again)
	}
}

// TestDocumentRefusesBrokenMarkers: without both markers, once and in order, nothing is replaced.
func TestDocumentRefusesBrokenMarkers(t *testing.T) {
	begin, end := beginMarker("x"), endMarker("x")
	for name, text := range map[string]string{
		"none":     "text",
		"no end":   begin + "text",
		"no begin": "text" + end,
		"swapped":  end + "text" + begin,
		"twice":    begin + end + begin + end,
	} {
		if got, err := replaceSection(text, "x", "new"); err == nil {
			t.Errorf("%s: replaced:\n%s", name, got)
		}
	}
}

// TestDocumentFile: a file that does not exist is made, one with a section is changed, one without is left alone.
func TestDocumentFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "accuracy.md")
	for _, body := range []string{"| one |", "| two |"} {
		must.NoError(t, writeSection(path, "x", body))
		if text, _ := os.ReadFile(path); !strings.Contains(string(text), body) ||
			strings.Count(string(text), "|") != 2 {
			t.Errorf("%s: %s", body, text)
		}
	}
	if err := writeSection(path, "y", "new"); err == nil {
		t.Error("a file without the section was changed")
	}
}

// TestDocumentOfTheProject: docs/examples/simulator.md has a place for what the benchmarks write.
func TestDocumentOfTheProject(t *testing.T) {
	text, err := os.ReadFile("../../docs/examples/simulator.md")
	must.NoError(t, err)
	for _, section := range []string{diagnosisSection, whatIfSection} {
		if _, err := replaceSection(string(text), section, "new"); err != nil {
			t.Error(err)
		}
	}
}

// TestDocumentTables: a row for each planted cause, and one for each program that was judged wrong.
func TestDocumentTables(t *testing.T) {
	sleep, lock, none := &scenario{name: "a", want: "sleep"}, &scenario{name: "b", want: "lock"}, &scenario{name: "c"}
	got := diagnosisDocument([]*verdict{
		{
			number:   1,
			scenario: sleep,
			Planted:  "sleep",
			Found:    "sleep",
			True:     100,
			Cost:     101,
			Covered:  200,
			Idle:     100,
			Right:    true,
			Near:     true,
		},
		{number: 2, scenario: lock, Planted: "lock", Found: "worker", True: 100, Cost: 90, Covered: 200, Idle: 150},
		{number: 3, scenario: none, Covered: 200, Right: true, Near: true},
	}, 4)
	for _, want := range []string{
		"| lock | 0/1 |  |\n| none (healthy) | 1/1 |  |\n| sleep | 1/1 | 1.0% |\n",
		"| 2 | b | 75.0% | lock |", "Not all: 3 of 4.",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("without %q:\n%s", want, got)
		}
	}
	right := &predicted{number: 1, scenario: sleep, Measured: 2}
	right.Speedup, right.Low, right.High = 2.1, 1.9, 2.3
	far := &predicted{number: 2, scenario: sleep, Measured: 4}
	far.Speedup, far.Low, far.High = 2, 1.9, 2.3
	got = whatIfDocument([]*predicted{right, far}, 2)
	for _, want := range []string{
		"| sleep | 2.00 to 4.00 | 1/2 | 1/2 | 27.5% (50.0%) |", "| 2 | a |  | 2.00 | 1.90 to 2.30 | 4.00 |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("without %q:\n%s", want, got)
		}
	}
}
