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
)

// table writes b in columns; where the line is too short, the columns that matter
// least go, then the first one is cut, and then the other ones of text.
func (t *textWriter) table(b *Table) {
	fitted := b.fit(t.width - indent)
	widths := fitted.widths()
	fitted.cut(widths, fitted.total()-(t.width-indent))
	t.row(fitted, widths, titles(fitted.Columns), bold)
	for _, r := range fitted.Rows {
		t.row(fitted, widths, r, "")
	}
	if b.Note != "" {
		t.wrapped("  ", "  ", b.Note)
	}
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
	for f.total() > width {
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

func (t *Table) total() int {
	total := separator * (len(t.Columns) - 1)
	for _, w := range t.widths() {
		total += w
	}
	return total
}
