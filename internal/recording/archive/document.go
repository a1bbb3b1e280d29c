package archive

import (
	"fmt"
	"strings"
)

// documentBegin is where the generated part of docs/recordings.md begins.
const documentBegin = "## Tables of events\n"

// Document returns the description of every table and column, as docs/recordings.md has it.
func Document() string {
	var b strings.Builder
	b.WriteString(documentBegin)
	for _, t := range eventTables() {
		columns := make([]column, 0, len(t.fields)+1)
		for _, f := range t.fields {
			columns = append(columns, f.column)
		}
		documentTable(&b, t.name, t.doc, append(columns, tieColumn()))
	}
	b.WriteString("\n## Tables of names and states\n")
	for _, t := range nameTables() {
		documentTable(&b, t.name, t.doc, columnsOf(t.row))
	}
	return b.String()
}

func documentTable(b *strings.Builder, name, doc string, columns []column) {
	fmt.Fprintf(b, "\n### %s\n\n%s.\n\n| column | type | what |\n|---|---|---|\n", name, strings.ToUpper(doc[:1])+doc[1:])
	for _, c := range columns {
		fmt.Fprintf(b, "| %s | %s | %s |\n", c.name, c.kind, c.doc)
	}
}

// String returns the name of the type in Parquet.
func (k kind) String() string {
	switch k {
	case int32Kind:
		return "INT32"
	case int64Kind:
		return "INT64"
	case uint32Kind:
		return "UINT32"
	case uint64Kind:
		return "UINT64"
	case boolKind:
		return "BOOLEAN"
	}
	return "STRING"
}

// Column describes a column of a table for readers of other programs.
type Column struct {
	Name string
	Type string // INT32, INT64, UINT32, UINT64, BOOLEAN or STRING
}

// Columns returns the columns of a table in their order; nil where this program does not know the table.
func Columns(table string) []Column {
	var list []column
	for _, t := range eventTables() {
		if t.name == table {
			for _, f := range t.fields {
				list = append(list, f.column)
			}
			list = append(list, tieColumn())
		}
	}
	for _, t := range nameTables() {
		if t.name == table {
			list = columnsOf(t.row)
		}
	}
	var out []Column
	for _, c := range list {
		out = append(out, Column{c.name, c.kind.String()})
	}
	return out
}
