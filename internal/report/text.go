package report

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// TextOptions says what a text is written on.
type TextOptions struct {
	Width int  // characters in a line; 0 means 120, for files and pipes
	Color bool // use ANSI colours
	Rows  int  // at most so many rows in a table; 0 means 20
}

// The defaults of TextOptions, and what is too narrow to be read at all.
const (
	defaultWidth = 120
	defaultRows  = 20
	minWidth     = 40
)

// Text writes the model for a terminal, or for whatever takes plain text.
func Text(w io.Writer, m *Model, o TextOptions) error {
	if o.Width == 0 {
		o.Width = defaultWidth
	}
	if o.Rows == 0 {
		o.Rows = defaultRows
	}
	t := &textWriter{w: bufio.NewWriter(w), width: max(o.Width, minWidth), color: o.Color}
	d := newDocument(m, o.Rows)
	t.line(t.paint(bold, d.title))
	for i, b := range d.blocks {
		if _, list := b.(notice); !list || i == 0 || !isNotice(d.blocks[i-1]) {
			t.gap(d.blocks, i)
		}
		t.block(b)
	}
	if err := t.w.Flush(); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// ANSI colours; see ECMA-48, SGR.
const (
	bold   = "\x1b[1m"
	red    = "\x1b[1;31m"
	yellow = "\x1b[33m"
	reset  = "\x1b[0m"
)

// textWriter keeps bufio's first error for Flush.
type textWriter struct {
	w     *bufio.Writer
	width int
	color bool
}

func (t *textWriter) line(s string) { _, _ = t.w.WriteString(strings.TrimRight(s, " ") + "\n") }

func (t *textWriter) paint(code, s string) string {
	if !t.color || code == "" {
		return s
	}
	return code + s + reset
}

func isNotice(b block) bool {
	_, ok := b.(notice)
	return ok
}

// gap leaves a line free before a block, but not between a heading and what it heads.
func (t *textWriter) gap(blocks []block, i int) {
	if i > 0 {
		if _, ok := blocks[i-1].(heading); ok {
			return
		}
	}
	t.line("")
}

func (t *textWriter) block(b block) {
	switch b := b.(type) {
	case heading:
		t.line(t.paint(bold, string(b)))
	case paragraph:
		t.wrapped("", "", string(b))
	case notice:
		t.notice(b)
	case facts:
		t.facts(b)
	case bullets:
		for _, s := range b {
			t.wrapped("- ", "  ", s)
		}
	case *table:
		t.table(b)
	}
}

func (t *textWriter) notice(n notice) {
	code := ""
	switch n.mark {
	case "error":
		code = red
	case "warning":
		code = yellow
	}
	first := fmt.Sprintf("  %-9s", n.mark)
	for i, l := range wrap(n.text, t.width-len(first)) {
		if i == 0 {
			t.line(t.paint(code, first) + l)
			continue
		}
		t.line(strings.Repeat(" ", len(first)) + l)
	}
}

func (t *textWriter) facts(list facts) {
	label := 0
	for _, f := range list {
		label = max(label, utf8.RuneCountInString(f.label))
	}
	for _, f := range list {
		t.wrapped("  "+pad(f.label, label, true)+"  ", strings.Repeat(" ", label+4), f.value)
	}
}

// wrapped writes s in lines that fit, the first after one prefix, the others after another of the same length.
func (t *textWriter) wrapped(first, others, s string) {
	for i, l := range wrap(s, t.width-utf8.RuneCountInString(first)) {
		if i == 0 {
			t.line(first + l)
			continue
		}
		t.line(others + l)
	}
}

// wrap breaks s at spaces into lines of at most width characters; a longer word has a line of its own.
func wrap(s string, width int) []string {
	var lines []string
	var line strings.Builder
	length := 0
	for _, word := range strings.Fields(s) {
		n := utf8.RuneCountInString(word)
		if length > 0 && length+1+n > width {
			lines = append(lines, line.String())
			line.Reset()
			length = 0
		}
		if length > 0 {
			line.WriteByte(' ')
			length++
		}
		line.WriteString(word)
		length += n
	}
	return append(lines, line.String())
}

// pad fills s up to width characters.
func pad(s string, width int, left bool) string {
	space := strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s)))
	if left {
		return s + space
	}
	return space + s
}
