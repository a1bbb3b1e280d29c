package document

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Markdown writes the document as GitHub-flavoured Markdown.
func Markdown(w io.Writer, d *Document) error {
	b := bufio.NewWriter(w)
	d = d.printable()
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

func markdownBlock(b *bufio.Writer, bl block) {
	switch bl := bl.(type) {
	case Heading:
		put(b, "## "+escape(string(bl)))
	case Subheading:
		put(b, "### "+escape(string(bl)))
	case Banner:
		put(b, "**"+escape(bl.Text)+"**")
	case Item:
		markdownItem(b, bl)
	case Code:
		markdownCode(b, bl)
	case Stack:
		markdownCode(b, bl)
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

func markdownItem(b *bufio.Writer, it Item) {
	number := fmt.Sprintf("%d. ", it.Number)
	put(b, number+"**"+escape(it.Title)+"**")
	for _, l := range it.Lines {
		put(b, strings.Repeat(" ", len(number))+"- "+escape(l))
	}
}

// markdownCode fences lines with more backticks than any of them holds in a row, so that none of them can end the
// fence.
func markdownCode(b *bufio.Writer, lines []string) {
	fence := "```"
	for strings.Contains(strings.Join(lines, "\n"), fence) {
		fence += "`"
	}
	put(b, fence)
	for _, l := range lines {
		put(b, l)
	}
	put(b, fence)
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
	return strings.NewReplacer(`\`, `\\`, "`", "\\`", "*", `\*`, "_", `\_`, "|", `\|`, "[", `\[`, "]", `\]`,
		"~", `\~`, "<", "&lt;", ">", "&gt;", "&", "&amp;").Replace(s)
}
