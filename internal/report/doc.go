package report

// A document is what a report says, before it is known on what it is written.
// The text and Markdown renderings share it, so that they have the same words.
type document struct {
	title  string
	blocks []block
}

// block is a part of a document: one of the types below.
type block interface{ isBlock() }

// heading begins a section.
type heading string

// paragraph is running text.
type paragraph string

// notice is a doubt.
type notice struct {
	mark string // the severity
	text string
}

// fact is one line of a list of labelled values.
type fact struct{ label, value string }

// facts is such a list.
type facts []fact

// bullets is a list of sentences.
type bullets []string

// table is a table; each row has a cell for each column.
type table struct {
	columns []column
	rows    [][]string
	note    string // below it, "" for none
}

// column is one column of a table.
type column struct {
	title string
	left  bool // text; numbers are aligned on the right
	keep  int  // where there is too little room, columns of the least keep go first; 0 never goes
}

func (heading) isBlock()   {}
func (paragraph) isBlock() {}
func (notice) isBlock()    {}
func (facts) isBlock()     {}
func (bullets) isBlock()   {}
func (*table) isBlock()    {}

func (d *document) add(b ...block) { d.blocks = append(d.blocks, b...) }

// addTable adds a section with a table, unless it is empty.
func (d *document) addTable(title string, t *table) {
	if len(t.rows) > 0 {
		d.add(heading(title), t)
	}
}

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }
