package report

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// markdownRows bounds the tables of a Markdown report: it is kept and searched, so it says more than a terminal.
const markdownRows = 100

// Markdown writes the model as GitHub-flavoured Markdown.
func Markdown(w io.Writer, m *Model) error {
	b := bufio.NewWriter(w)
	d := newDocument(m, markdownRows)
	put(b, "# "+escape(d.title))
	for i, bl := range d.blocks {
		if i == 0 || !isNotice(bl) || !isNotice(d.blocks[i-1]) {
			put(b, "")
		}
		markdownBlock(b, bl)
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// JSON writes the model as JSON: an object with Kind and Schema first.
func JSON(w io.Writer, m *Model) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(m); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// put writes a line; bufio keeps the first error for Flush.
func put(b *bufio.Writer, s string) { _, _ = b.WriteString(s + "\n") }

func markdownBlock(b *bufio.Writer, bl block) {
	switch bl := bl.(type) {
	case heading:
		put(b, "## "+escape(string(bl)))
	case paragraph:
		put(b, escape(string(bl)))
	case notice:
		put(b, "- **"+escape(bl.mark)+"**: "+escape(bl.text))
	case facts:
		for _, f := range bl {
			put(b, "- **"+escape(f.label)+"**: "+escape(f.value))
		}
	case bullets:
		for _, s := range bl {
			put(b, "- "+escape(s))
		}
	case *table:
		markdownTable(b, bl)
	}
}

func markdownTable(b *bufio.Writer, t *table) {
	titleRow, rule := "|", "|"
	for _, c := range t.columns {
		titleRow += " " + escape(c.title) + " |"
		if c.left {
			rule += " :--- |"
		} else {
			rule += " ---: |"
		}
	}
	put(b, titleRow)
	put(b, rule)
	for _, r := range t.rows {
		line := "|"
		for _, c := range r {
			line += " " + escape(c) + " |"
		}
		put(b, line)
	}
	if t.note != "" {
		put(b, "")
		put(b, escape(t.note))
	}
}

// escape takes the meaning that Markdown or HTML would give a character away: the
// target chooses some of these texts, and reports are shown in browsers.
func escape(s string) string {
	return strings.NewReplacer(
		`\`, `\\`, "`", "\\`", "*", `\*`, "_", `\_`, "|", `\|`, "[", `\[`, "]", `\]`, "<", "&lt;", ">", "&gt;", "&", "&amp;", "~", `\~`,
	).Replace(s)
}
