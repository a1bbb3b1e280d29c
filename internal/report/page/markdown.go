package page

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Markdown writes the document as GitHub-flavoured Markdown.
func Markdown(w io.Writer, d *Document) error {
	b := bufio.NewWriter(w)
	if d.Title != "" {
		put(b, "# "+escape(d.Title))
	}
	for i, bl := range d.Blocks {
		if (i > 0 || d.Title != "") && !d.sameList(i) {
			put(b, "")
		}
		markdownBlock(b, bl)
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("write Markdown: %w", err)
	}
	return nil
}

// put writes a line; bufio keeps the first error for Flush.
func put(b *bufio.Writer, s string) { _, _ = b.WriteString(s + "\n") }

func markdownBlock(b *bufio.Writer, bl Block) {
	switch bl := bl.(type) {
	case Heading:
		put(b, "## "+escape(string(bl)))
	case Paragraph:
		put(b, escape(string(bl)))
	case Notice:
		put(b, "- **"+escape(bl.Mark)+"**: "+escape(bl.Text))
	case Facts:
		for _, f := range bl {
			put(b, "- **"+escape(f.Label)+"**: "+escape(f.Value))
		}
	case Bullets:
		for _, s := range bl {
			put(b, "- "+escape(s))
		}
	case *Table:
		markdownTable(b, bl)
	}
}

func markdownTable(b *bufio.Writer, t *Table) {
	rule := "|"
	for _, c := range t.Columns {
		if c.Left {
			rule += " :--- |"
		} else {
			rule += " ---: |"
		}
	}
	markdownRow(b, titles(t.Columns))
	put(b, rule)
	for _, r := range t.Rows {
		markdownRow(b, r)
	}
	if t.Note != "" {
		put(b, "")
		put(b, escape(t.Note))
	}
}

func markdownRow(b *bufio.Writer, cells []string) {
	line := "|"
	for _, c := range cells {
		line += " " + escape(c) + " |"
	}
	put(b, line)
}

// escape takes the meaning that Markdown or HTML would give a character away: the
// target chooses some of these texts, and reports are shown in browsers.
func escape(s string) string {
	return strings.NewReplacer(
		`\`, `\\`, "`", "\\`", "*", `\*`, "_", `\_`, "|", `\|`, "[", `\[`, "]", `\]`, "~", `\~`,
		"<", "&lt;", ">", "&gt;", "&", "&amp;",
	).Replace(s)
}
