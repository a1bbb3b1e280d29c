package document

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/inferscope/inferscope/internal/format"
)

// Widths of text tables, in characters.
const (
	indent    = 2
	separator = 2
	minFirst  = 12 // columns are not cut below this
	minWrap   = 30 // sentences are wrapped down to this before columns are cut
)

// table writes b in columns; where the line is too short, the columns that matter
// least go, then the first one is cut, and then the other ones of text.
func (t *textWriter) table(b *Table) {
	fitted := b.fit(t.width - indent)
	widths := fitted.widths()
	last := len(widths) - 1
	if last >= 0 && fitted.Columns[last].Wrap {
		over := fitted.total() - (t.width - indent)
		widths[last] = max(min(widths[last], minWrap), widths[last]-max(0, over))
	}
	fitted.cut(widths, sum(widths)-(t.width-indent))
	for _, line := range fitted.lines(titles(fitted.Columns), widths) {
		t.row(fitted, widths, line, bold)
	}
	for _, r := range fitted.Rows {
		for _, line := range fitted.lines(r, widths) {
			t.row(fitted, widths, line, "")
		}
	}
	if b.Note != "" {
		t.wrapped("  ", "  ", b.Note)
	}
}

// lines returns a row as the lines that it takes: more than one where its sentences do not fit.
func (t *Table) lines(row []string, widths []int) [][]string {
	last := len(row) - 1
	if last < 0 || !t.Columns[last].Wrap {
		return [][]string{row}
	}
	var out [][]string
	for i, text := range wrap(row[last], widths[last]) {
		line := make([]string, len(row))
		if i == 0 {
			copy(line, row)
		}
		line[last] = text
		out = append(out, line)
	}
	return out
}

// cut shortens text columns by this many characters, the first one first.
func (t *Table) cut(widths []int, over int) {
	for i, c := range t.Columns {
		if less := min(over, widths[i]-minFirst); less > 0 && (i == 0 || c.Left) {
			widths[i] -= less
			over -= less
		}
	}
}

func titles(columns []Column) []string {
	var out []string
	for _, c := range columns {
		out = append(out, c.Title)
	}
	return out
}

func (t *textWriter) row(b *Table, widths []int, cells []string, code string) {
	var line strings.Builder
	for i, c := range cells {
		if i > 0 {
			line.WriteString(strings.Repeat(" ", separator))
		}
		line.WriteString(Pad(format.Shorten(c, widths[i]), widths[i], b.Columns[i].Left))
	}
	t.line(strings.Repeat(" ", indent) + t.paint(code, strings.TrimRight(line.String(), " ")))
}

// fit returns the table without the columns for which there is no room.
func (t *Table) fit(width int) *Table {
	f := &Table{Columns: t.Columns, Rows: slices.Clone(t.Rows)}
	for f.least() > width {
		least := -1
		for i, c := range f.Columns {
			if c.Keep > 0 && (least < 0 || c.Keep < f.Columns[least].Keep) {
				least = i
			}
		}
		if least < 0 {
			break
		}
		f.remove(least)
	}
	return f
}

func (t *Table) widths() []int {
	w := make([]int, len(t.Columns))
	for i, c := range t.Columns {
		w[i] = utf8.RuneCountInString(c.Title)
		for _, r := range t.Rows {
			w[i] = max(w[i], utf8.RuneCountInString(r[i]))
		}
	}
	return w
}

// sum returns the width of a table with columns of these widths.
func sum(widths []int) int {
	total := separator * (len(widths) - 1)
	for _, w := range widths {
		total += w
	}
	return total
}

// total returns the width of the table where nothing is shortened or wrapped.
func (t *Table) total() int { return sum(t.widths()) }

// least returns the width of the table where sentences are wrapped as often as they may be.
func (t *Table) least() int {
	w := t.widths()
	if last := len(w) - 1; last >= 0 && t.Columns[last].Wrap {
		w[last] = min(w[last], minWrap)
	}
	return sum(w)
}
