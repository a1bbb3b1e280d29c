package document

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/inferscope/inferscope/internal/format"
)

// The width of lines, in characters: where nobody says, and what is too narrow to be read at all.
const (
	defaultWidth = 120
	minWidth     = 40
)

// Style describes the output device of a text.
type Style struct {
	Width int  // characters in a line; 0 means defaultWidth, for files and pipes
	Color bool // use ANSI colours
}

// Text writes the document for a terminal, or for whatever takes plain text.
func Text(w io.Writer, d *Document, s Style) error {
	if s.Width == 0 {
		s.Width = defaultWidth
	}
	d = d.printable()
	t := &textWriter{w: bufio.NewWriter(w), width: max(s.Width, minWidth), color: s.Color}
	if d.Title != "" {
		t.line(t.paint(bold, d.Title))
	}
	for i, b := range d.Blocks {
		if t.started && d.apart(i) {
			t.line("")
		}
		t.block(b)
	}
	if err := t.w.Flush(); err != nil {
		return fmt.Errorf("write text: %w", err)
	}
	return nil
}

// apart reports whether a line stays free before block i of a text.
func (d *Document) apart(i int) bool {
	if i == 0 {
		return true
	}
	switch d.Blocks[i-1].(type) {
	case Heading, Subheading, Banner:
		return false
	case Bullets:
		switch d.Blocks[i].(type) {
		case Code, Stack:
			return false
		}
	}
	return !d.sameList(i)
}

// sameList reports whether block i goes on with a list that the block before began.
func (d *Document) sameList(i int) bool {
	if i == 0 {
		return false
	}
	before := d.Blocks[i-1]
	switch d.Blocks[i].(type) {
	case Notice:
		_, ok := before.(Notice)
		return ok
	case Item:
		_, ok := before.(Item)
		return ok
	case Bullets:
		_, ok := before.(Bullets)
		return ok
	}
	return false
}

// ANSI colours; see ECMA-48, SGR.
const (
	bold   = "\x1b[1m"
	red    = "\x1b[1;31m"
	green  = "\x1b[1;32m"
	amber  = "\x1b[1;33m"
	yellow = "\x1b[33m"
	reset  = "\x1b[0m"
)

// textWriter writes lines; bufio keeps the first error for Flush.
type textWriter struct {
	w       *bufio.Writer
	width   int
	color   bool
	started bool // something is written
}

func (t *textWriter) line(s string) {
	t.started = true
	_, _ = t.w.WriteString(strings.TrimRight(s, " ") + "\n")
}

func (t *textWriter) paint(code, s string) string {
	if !t.color || code == "" {
		return s
	}
	return code + s + reset
}

func (t *textWriter) block(b block) {
	switch b := b.(type) {
	case Heading:
		t.line(t.paint(bold, string(b)))
	case Subheading:
		t.painted(bold, string(b))
	case Banner:
		t.painted(map[Mood]string{Plain: bold, Good: green, Bad: amber}[b.Mood], b.Text)
	case Item:
		t.item(b)
	case Code:
		t.code(b)
	case Stack:
		t.stack(b)
	case Paragraph:
		t.wrapped("", "", string(b))
	case Notice:
		t.notice(b)
	case Facts:
		t.facts(b)
	case Bullets:
		for _, s := range b {
			t.wrapped("- ", "  ", s)
		}
	case *Table:
		t.table(b)
	}
}

// painted writes s in lines that fit, all of one colour.
func (t *textWriter) painted(code, s string) {
	for _, l := range wrap(s, t.width) {
		t.line(t.paint(code, l))
	}
}

func (t *textWriter) item(it Item) {
	number := fmt.Sprintf("%d. ", it.Number)
	space := strings.Repeat(" ", len(number))
	for i, l := range wrap(it.Title, t.width-len(number)) {
		if i == 0 {
			t.line(t.paint(bold, number+l))
			continue
		}
		t.line(space + t.paint(bold, l))
	}
	for _, l := range it.Lines {
		t.wrapped(space, space, l)
	}
}

// codeIndent is how far code stands from the edge, in characters.
const codeIndent = 4

func (t *textWriter) code(lines Code) {
	for _, l := range lines {
		t.line(strings.Repeat(" ", codeIndent) + l)
	}
}

func (t *textWriter) stack(lines Stack) {
	for _, l := range lines {
		t.line(strings.Repeat(" ", codeIndent) + format.Shorten(l, t.width-codeIndent))
	}
}

func (t *textWriter) notice(n Notice) {
	code := ""
	switch n.Mark {
	case "error":
		code = red
	case "warning":
		code = yellow
	}
	first := fmt.Sprintf("  %-9s", n.Mark)
	for i, l := range wrap(n.Text, t.width-len(first)) {
		if i == 0 {
			t.line(t.paint(code, first) + l)
			continue
		}
		t.line(strings.Repeat(" ", len(first)) + l)
	}
}

func (t *textWriter) facts(list Facts) {
	label := 0
	for _, f := range list {
		label = max(label, utf8.RuneCountInString(f.Label))
	}
	for _, f := range list {
		t.wrapped("  "+Pad(f.Label, label, true)+"  ", strings.Repeat(" ", label+4), f.Value)
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

// wrap breaks s at spaces into lines of at most width characters; a word that is
// longer is broken too.
func wrap(s string, width int) []string {
	var lines []string
	var line strings.Builder
	length := 0
	for _, word := range words(s, max(1, width)) {
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

// words splits s at spaces, and words of more than width characters after that many.
func words(s string, width int) []string {
	var out []string
	for _, word := range strings.Fields(s) {
		r := []rune(word)
		for len(r) > width {
			out = append(out, string(r[:width]))
			r = r[width:]
		}
		out = append(out, string(r))
	}
	return out
}

// Pad fills s up to width characters.
func Pad(s string, width int, left bool) string {
	space := strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s)))
	if left {
		return s + space
	}
	return space + s
}
