package archive

import (
	"fmt"
	"slices"
	"strings"
)

// unused is the description of a column that holds nothing.
const unused = "unused, 0"

// Document returns the description of every table and column in Markdown. Columns that several tables of events share
// are described once.
func Document() string {
	tables := eventTables()
	tables = slices.DeleteFunc(tables, func(t eventTable) bool { return t.name == "open_states" }) // as thread_states
	uses := map[column]int{}
	var shared []column
	for _, t := range tables {
		for _, c := range documented(t.fields) {
			uses[c]++
			named := slices.ContainsFunc(shared, func(other column) bool { return other.name == c.name })
			if uses[c] == 2 && c.doc != unused && !named {
				shared = append(shared, c)
			}
		}
	}
	everywhere := func(c column) bool { return uses[c] == len(tables) }
	var b strings.Builder
	b.WriteString("## Tables of events\n\nColumns of every table:\n\n")
	documentColumns(&b, slices.DeleteFunc(slices.Clone(shared), func(c column) bool { return !everywhere(c) }))
	b.WriteString("\nColumns of several tables, which name them under \"Also\":\n\n")
	documentColumns(&b, slices.DeleteFunc(slices.Clone(shared), everywhere))
	for _, t := range tables {
		var also, empty []string
		var own []column
		for _, c := range documented(t.fields) {
			switch {
			case c.doc == unused:
				empty = append(empty, c.name)
			case !slices.Contains(shared, c):
				own = append(own, c)
			case !everywhere(c):
				also = append(also, c.name)
			}
		}
		documentTable(&b, t.name, t.doc, own, also, empty)
		if t.name == "thread_states" {
			b.WriteString(
				"\n### open_states\n\nThe same columns; waits that were not over at the end of the recording.\n",
			)
		}
	}
	b.WriteString("\n## Tables of names and states\n")
	for _, t := range nameTables() {
		documentTable(&b, t.name, t.doc, columnsOf(t.row), nil, nil)
	}
	return b.String()
}

// documented returns the columns of an event table without their packing, which no reader of the table sees.
func documented(fields []field) []column {
	columns := make([]column, 0, len(fields)+1)
	for _, f := range fields {
		columns = append(columns, f.column)
	}
	columns = append(columns, tieColumn())
	for i := range columns {
		columns[i].packing = 0
	}
	return columns
}

func documentTable(b *strings.Builder, name, doc string, own []column, also, empty []string) {
	fmt.Fprintf(b, "\n### %s\n\n%s.", name, strings.ToUpper(doc[:1])+doc[1:])
	if len(also) > 0 {
		fmt.Fprintf(b, " Also %s.", strings.Join(also, ", "))
	}
	if len(empty) > 0 {
		fmt.Fprintf(b, " Unused: %s.", strings.Join(empty, ", "))
	}
	b.WriteString("\n")
	if len(own) > 0 {
		b.WriteString("\n")
	}
	documentColumns(b, own)
}

func documentColumns(b *strings.Builder, columns []column) {
	for _, c := range columns {
		fmt.Fprintf(b, "- `%s` %s: %s\n", c.name, c.kind, c.doc)
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
