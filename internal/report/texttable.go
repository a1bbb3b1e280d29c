package report

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Widths of text tables, in characters.
const (
	indent    = 2
	separator = 2
	minName   = 16 // a first column is not cut below this
)

// table writes b in columns; where the line is too short, the columns that matter
// least go, and then the first one is cut.
func (t *textWriter) table(b *table) {
	fitted := b.fit(t.width - indent)
	widths := fitted.widths()
	if over := fitted.total() - (t.width - indent); over > 0 {
		widths[0] = max(minName, widths[0]-over)
	}
	t.row(fitted, widths, titles(fitted.columns), bold)
	for _, r := range fitted.rows {
		t.row(fitted, widths, r, "")
	}
	if b.note != "" {
		t.wrapped("  ", "  ", b.note)
	}
}

func titles(columns []column) []string {
	var out []string
	for _, c := range columns {
		out = append(out, c.title)
	}
	return out
}

func (t *textWriter) row(b *table, widths []int, cells []string, code string) {
	var line strings.Builder
	for i, c := range cells {
		if i > 0 {
			line.WriteString(strings.Repeat(" ", separator))
		}
		line.WriteString(pad(shorten(c, widths[i]), widths[i], b.columns[i].left))
	}
	t.line(strings.Repeat(" ", indent) + t.paint(code, strings.TrimRight(line.String(), " ")))
}

// fit returns the table without the columns for which there is no room.
func (b *table) fit(width int) *table {
	f := &table{columns: slices.Clone(b.columns), rows: make([][]string, len(b.rows))}
	for i, r := range b.rows {
		f.rows[i] = slices.Clone(r)
	}
	for f.total() > width {
		least := -1
		for i, c := range f.columns {
			if c.keep > 0 && (least < 0 || c.keep < f.columns[least].keep) {
				least = i
			}
		}
		if least < 0 {
			break
		}
		f.columns = slices.Delete(f.columns, least, least+1)
		for i := range f.rows {
			f.rows[i] = slices.Delete(f.rows[i], least, least+1)
		}
	}
	return f
}

func (b *table) widths() []int {
	w := make([]int, len(b.columns))
	for i, c := range b.columns {
		w[i] = utf8.RuneCountInString(c.title)
		for _, r := range b.rows {
			w[i] = max(w[i], utf8.RuneCountInString(r[i]))
		}
	}
	return w
}

func (b *table) total() int {
	total := separator * (len(b.columns) - 1)
	for _, w := range b.widths() {
		total += w
	}
	return total
}
