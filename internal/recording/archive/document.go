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
