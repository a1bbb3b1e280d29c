package document

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

func sample() *Document {
	d := &Document{Title: "Title"}
	var f Facts
	f.Add("A", "one two three four five six seven eight nine ten")
	f.Add("Long label", "x")
	d.Add(f, Heading("Doubts"), Notice{"error", "a first one"},
		Notice{"info", "a second one that is so long that it does not fit"})
	t := &Table{Columns: []Column{Left("Name", 0), Right("Much", 2), Right("Less", 1)}, Note: "A note."}
	t.Row("alpha", "1", "22")
	t.Row("beta_with|bar", "333", "4")
	d.AddTable("Numbers", t)
	d.AddTable("Left out", &Table{Columns: []Column{Left("Empty", 0)}})
	d.Add(
		Bullets{"first", "second"},
		Bullets{"third"},
		Code{"def f():", "    return \"``` not the end *of* the fence\""},
	)
	d.Add(Subheading("Part"), Banner{Good, "All is well"}, Paragraph("really"))
	d.Add(
		Item{
			1,
			"One title that is too long for a line",
			[]string{"why", "what to do about it, at length and in words"},
		},
		Item{2, "Another", nil},
	)
	return d
}

func render(t *testing.T, d *Document, s Style) string {
	t.Helper()
	var out strings.Builder
	must.NoError(t, Text(&out, d, s))
	return out.String()
}

func TestText(t *testing.T) {
	want := `Title

  A           one two three four five
              six seven eight nine ten
  Long label  x

Doubts
  error    a first one
  info     a second one that is so long
           that it does not fit

Numbers
  Name           Much  Less
  alpha             1    22
  beta_with|bar   333     4
  A note.

- first
- second
- third
    def f():
        return "%s not the end *of* the fence"

Part
All is well
really

1. One title that is too long for a line
   why
   what to do about it, at length and in
   words
2. Another
`
	want = fmt.Sprintf(want, "```")
	if diff := cmp.Diff(want, render(t, sample(), Style{Width: 40})); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
}

func TestMarkdown(t *testing.T) {
	want := `# Title

- **A**: one two three four five six seven eight nine ten
- **Long label**: x

## Doubts

- **error**: a first one
- **info**: a second one that is so long that it does not fit

## Numbers

| Name | Much | Less |
| :--- | ---: | ---: |
| alpha | 1 | 22 |
| beta\_with\|bar | 333 | 4 |

A note.

- first
- second
- third

%s
def f():
    return "%s not the end *of* the fence"
%s

### Part

**All is well**

really

1. **One title that is too long for a line**
   - why
   - what to do about it, at length and in words
2. **Another**
`
	want = fmt.Sprintf(want, "````", "```", "````")
	var out strings.Builder
	must.NoError(t, Markdown(&out, sample()))
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("Markdown (-want +got):\n%s", diff)
	}
}

func TestColumnsGoByWhatTheyAreWorth(t *testing.T) {
	table := &Table{Columns: []Column{Left("Name", 0), Right("Second", 2), Right("First", 1)}}
	table.Row("a-name-of-24-characters-", "1234567890", "1234567890")
	for width, want := range map[int]string{
		60: "  Name                          Second       First", 46: "  Name                          Second",
		40: "  Name                          Second",
	} {
		d := &Document{}
		d.Add(table)
		got, _, _ := strings.Cut(render(t, d, Style{Width: width}), "\n")
		if got != want {
			t.Errorf("at %d: %q, want %q", width, got, want)
		}
	}
	if len(table.Columns) != 3 || len(table.Rows[0]) != 3 {
		t.Errorf("writing changed the table: %+v", table)
	}
}

func TestDrop(t *testing.T) {
	table := &Table{Columns: []Column{Left("A", 0), Right("B", 0)}}
	table.Row("1", "2")
	table.Drop("A")
	table.Drop("not there")
	if diff := cmp.Diff([][]string{{"2"}}, table.Rows); diff != "" {
		t.Error(diff)
	}
}

// FuzzText holds that every line fits, whatever the words.
func FuzzText(f *testing.F) {
	f.Add("some words and averyveryveryveryveryveryverylongwordthatfitsnowhereatall", "cell", 40)
	f.Add("", "", 0)
	fuzzing.Run(f, func(t *testing.T, text, cell string, width int) {
		if strings.ContainsAny(text+cell, "\r\n") || width > 1000 {
			return // clean texts only
		}
		d := &Document{Title: "T"}
		table := &Table{Columns: []Column{Left("A", 0), Right("B", 1)}, Note: text}
		table.Row(cell, cell)
		d.Add(Paragraph(text), Notice{"info", text}, Bullets{text}, table)
		d.Add(Banner{Bad, text}, Subheading(cell), Item{12, text, []string{cell, text}}, Stack{cell, text})
		want := max(width, minWidth)
		if width == 0 {
			want = defaultWidth
		}
		for line := range strings.Lines(render(t, d, Style{Width: width})) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > want {
				t.Errorf("%d characters at width %d: %q", n, want, line)
			}
		}
	})
}

// TestSentences: the last column of a table is broken into lines, not dropped, where there is too little room.
func TestSentences(t *testing.T) {
	d := &Document{}
	table := &Table{Columns: []Column{Left("Source", 0), Right("Cost", 1), Sentences("Why")}}
	table.Row("requests", "1%", "watching took far too much of the time of the target, 3% of it this")
	table.Row("samples", "0%", "")
	d.AddTable("", table)
	for width, want := range map[int]string{
		60: `  Source    Cost  Why
  requests    1%  watching took far too much of the time of
                  the target, 3% of it this
  samples     0%
`,
		44: `  Source    Why
  requests  watching took far too much of
            the time of the target, 3% of it
            this
  samples
`,
	} {
		if got := render(t, d, Style{Width: width}); !strings.HasSuffix(got, want) {
			t.Errorf("at %d: %s", width, cmp.Diff(want, got))
		}
	}
}
