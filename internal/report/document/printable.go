package document

import "github.com/inferscope/inferscope/internal/format"

// printable returns the document without what cannot be seen, whoever chose its texts.
func (d *Document) printable() *Document {
	out := &Document{Title: format.Printable(d.Title), Blocks: make([]block, len(d.Blocks))}
	for i, b := range d.Blocks {
		out.Blocks[i] = printable(b)
	}
	return out
}

func printable(b block) block {
	switch b := b.(type) {
	case Heading:
		return Heading(format.Printable(string(b)))
	case Subheading:
		return Subheading(format.Printable(string(b)))
	case Paragraph:
		return Paragraph(format.Printable(string(b)))
	case Banner:
		return Banner{Mood: b.Mood, Text: format.Printable(b.Text)}
	case Item:
		return Item{Number: b.Number, Title: format.Printable(b.Title), Lines: each(b.Lines)}
	case Code:
		return Code(each(b))
	case Stack:
		return Stack(each(b))
	case Notice:
		return Notice{Mark: format.Printable(b.Mark), Text: format.Printable(b.Text)}
	case Facts:
		out := make(Facts, 0, len(b))
		for _, f := range b {
			out.Add(format.Printable(f.Label), format.Printable(f.Value))
		}
		return out
	case Bullets:
		return Bullets(each(b))
	case *Table:
		out := &Table{Columns: b.Columns, Note: format.Printable(b.Note)}
		for _, row := range b.Rows {
			out.Rows = append(out.Rows, each(row))
		}
		return out
	}
	return b
}

func each(texts []string) []string {
	out := make([]string, len(texts))
	for i, s := range texts {
		out[i] = format.Printable(s)
	}
	return out
}
