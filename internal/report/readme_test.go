package report

import (
	"os"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestReadmeShowsARealReport holds the example in the README against the first screen of a report.
func TestReadmeShowsARealReport(t *testing.T) {
	const file, begin, end = "../../README.md", "-update -->\n", "<!-- /report -->"
	readme, err := os.ReadFile(file)
	must.NoError(t, err)
	before, rest, ok1 := strings.Cut(string(readme), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatal("the README has no place for a report")
	}
	whole := text(t, New(workerWait()), TextOptions{})
	want := before + begin + "\n"
	for line := range strings.Lines(screen(whole, answerLines(whole)-1)) {
		want += strings.TrimRight("    "+line, " \n") + "\n"
	}
	want += "\n" + end + after
	if *update {
		must.NoError(t, os.WriteFile(file, []byte(want), 0o644))
		return
	}
	if want != string(readme) {
		t.Error("the README shows another report (go test ./internal/report -run Readme -update writes it)")
	}
}
