package doctor

import (
	"fmt"
	"io"
	"strings"

	"github.com/inferscope/inferscope/internal/format"
)

// Text writes a diagnosis for people, in lines of at most width columns; 0 is 100. With colour, states stand out.
func Text(w io.Writer, d *Diagnosis, width int, color bool) error {
	if width <= 0 {
		width = 100
	}
	var b strings.Builder
	for _, s := range d.Sections {
		fmt.Fprintf(&b, "%s\n", format.Clean(s.Title))
		for _, c := range s.Checks {
			c.write(&b, width, color)
		}
		b.WriteByte('\n')
	}
	b.WriteString(d.verdict())
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("writing to standard output: %w", err)
	}
	return nil
}

// verdict is the last line: whether it works, and how many things are limited.
func (d *Diagnosis) verdict() string {
	limited := d.Count(stateLimited)
	switch {
	case !d.Works:
		text := fmt.Sprintf("InferScope cannot work like this: %s\n", format.CleanText(d.Problem))
		if d.Hint != "" {
			text += fmt.Sprintf("do: %s\n", format.CleanText(d.Hint))
		}
		return text
	case limited == 0:
		return "InferScope works here.\n"
	}
	return fmt.Sprintf("InferScope works here, with %s.\n", format.Plural(limited, "limit", "limits"))
}

// indent is where what was found begins.
const indent = 11

func (c *check) write(b *strings.Builder, width int, color bool) {
	state := fmt.Sprintf("  %-*s", indent-2, c.State)
	if code := map[checkState]string{
		stateOK: "32", stateLimited: "33", stateMissing: "31", stateUnknown: "33",
	}[c.State]; color && code != "" {
		state = "\x1b[" + code + "m" + state + "\x1b[0m"
	}
	b.WriteString(state)
	text := c.Name
	if c.Found != "" {
		text += ": " + c.Found
	}
	wrapped(b, text, indent, width)
	for _, more := range []struct{ label, text string }{{"lost: ", c.Lost}, {"do: ", c.Fix}} {
		if more.text != "" && c.State != stateOK {
			b.WriteString(strings.Repeat(" ", indent))
			wrapped(b, more.label+more.text, indent, width)
		}
	}
}

// wrapped writes a text whose first line begins at a column, and its other lines below it.
func wrapped(b *strings.Builder, text string, column, width int) {
	at := column
	for i, word := range strings.Fields(format.CleanText(text)) {
		size := len([]rune(word))
		if i > 0 && at+1+size > width {
			b.WriteString("\n" + strings.Repeat(" ", column))
			at = column
		} else if i > 0 {
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += size
	}
	b.WriteByte('\n')
}
