// Package document lays out what a person reads: a Document of headings, sentences
// and tables, written for a terminal or as Markdown. Both have the same words.
//
// The writers take care of what cannot be seen (format.Printable) and of what Markdown, HTML and narrow lines would
// make of the rest.
package document

import "slices"

// Document is a title and what follows.
type Document struct {
	Title  string // "" for none
	Blocks []block
}

// block is a part of a Document: one of the types below.
type block interface{ isBlock() }

// Heading begins a section.
type Heading string

// Paragraph is running text.
type Paragraph string

// Subheading begins a part of a section.
type Subheading string

// Banner is the most important statement, shown first.
type Banner struct {
	Mood Mood
	Text string
}

// Mood selects the colour of a Banner; the text does not depend on it.
type Mood uint8

// The moods.
const (
	Plain Mood = iota
	Good
	Bad
)

// Item is one entry of a numbered list, with what is said of it. Items that follow each other are one list.
type Item struct {
	Number int
	Title  string
	Lines  []string
}

// Code is program text, line by line. It is kept as it is, so that it can be copied: a terminal that is
// too narrow for a line breaks it without changing it.
type Code []string

// Stack is calls, the innermost first. A terminal shows as much of each as a line has room for.
type Stack []string

// Notice is something to know before the rest is read.
type Notice struct {
	Mark string // error, warning or info
	Text string
}

// fact is one line of a list of labelled values.
type fact struct{ Label, Value string }

// Facts is such a list.
type Facts []fact

// Bullets is a list of sentences.
type Bullets []string

// Table is a table; each row has a cell for each column.
type Table struct {
	Columns []Column
	Rows    [][]string
	Note    string // below it, "" for none
}

// Column is one column of a Table.
type Column struct {
	Title string
	Left  bool // text; numbers are aligned on the right
	Keep  int  // where there is too little room, columns of the least Keep go first; 0 never goes
	Wrap  bool // sentences, in the last column: they are broken into lines where they do not fit
}

// Left returns a column of text, Right one of numbers.
func Left(title string, keep int) Column { return Column{Title: title, Left: true, Keep: keep} }

// Right returns a column of numbers, Left one of text.
func Right(title string, keep int) Column { return Column{Title: title, Keep: keep} }

// Sentences returns a last column of text that is broken into lines where it does not fit.
func Sentences(title string) Column { return Column{Title: title, Left: true, Wrap: true} }

// Add appends a labelled value.
func (f *Facts) Add(label, value string) { *f = append(*f, fact{label, value}) }

func (Heading) isBlock()    {}
func (Subheading) isBlock() {}
func (Banner) isBlock()     {}
func (Item) isBlock()       {}
func (Code) isBlock()       {}
func (Stack) isBlock()      {}
func (Paragraph) isBlock()  {}
func (Notice) isBlock()     {}
func (Facts) isBlock()      {}
func (Bullets) isBlock()    {}
func (*Table) isBlock()     {}

// Add appends blocks.
func (d *Document) Add(b ...block) { d.Blocks = append(d.Blocks, b...) }

// AddTable appends a section with a table, unless the table is empty.
func (d *Document) AddTable(title string, t *Table) {
	if len(t.Rows) > 0 {
		d.Add(Heading(title), t)
	}
}

// Row appends a row.
func (t *Table) Row(cells ...string) { t.Rows = append(t.Rows, cells) }

// Drop removes the first column of that title, if there is one.
func (t *Table) Drop(title string) {
	if i := slices.IndexFunc(t.Columns, func(c Column) bool { return c.Title == title }); i >= 0 {
		t.remove(i)
	}
}

// remove removes column i. It does not change the slices that it was made of.
func (t *Table) remove(i int) {
	t.Columns = slices.Delete(slices.Clone(t.Columns), i, i+1)
	for r := range t.Rows {
		t.Rows[r] = slices.Delete(slices.Clone(t.Rows[r]), i, i+1)
	}
}
