package export_test

import (
	"bytes"
	"encoding/csv"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/report/export"
	"github.com/inferscope/inferscope/internal/testkit/exporttest"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestNamesThatDoThings: names that a spreadsheet would run, or that turn what a person reads around, are neutral in
// the exports that people open. Numbers stay numbers.
func TestNamesThatDoThings(t *testing.T) {
	const evil = "=cmd|' /C calc'!A0\u202E\x1b[2J"
	rec := exporttest.Decode(20)
	for i := range rec.Meta.GPU.Kernels {
		rec.Meta.GPU.Kernels[i].Name = evil
	}
	for i := range rec.Meta.Functions {
		rec.Meta.Functions[i].Name = "@" + evil
	}
	for i := range rec.Meta.Frames {
		rec.Meta.Frames[i].Name = evil
	}
	for i := range rec.Meta.Processes {
		rec.Meta.Processes[i].Comm = evil
	}
	write := func(name string) string {
		t.Helper()
		format, _ := export.Find(name)
		var b bytes.Buffer
		must.NoError(t, format.Write(&b, rec))
		if text := b.String(); strings.ContainsAny(text, "\u202E\x1b") || len(text) == 0 {
			t.Errorf("%s holds what cannot be seen: %.300q", name, text)
		}
		return b.String()
	}
	write("folded")
	rows, err := csv.NewReader(strings.NewReader(write("csv"))).ReadAll()
	if err != nil || len(rows) < 2 {
		t.Fatal(len(rows), err)
	}
	texts := []int{slices.Index(rows[0], "name"), slices.Index(rows[0], "call")}
	named := false
	for _, row := range rows[1:] {
		for i, cell := range row {
			if slices.Contains(texts, i) {
				named = named || cell != ""
				if cell != "" && !strings.HasPrefix(cell, "'") {
					t.Fatalf("%s is %q", rows[0][i], cell)
				}
			} else if _, err := strconv.ParseFloat(cell, 64); cell != "" && err != nil {
				t.Fatalf("%s is %q: %v", rows[0][i], cell, err)
			}
		}
	}
	if !named {
		t.Error("no row has a name")
	}
}
