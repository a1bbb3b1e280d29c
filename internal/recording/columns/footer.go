package columns

import (
	"errors"
	"fmt"
)

// element is one entry of the schema, as the footer lists it.
type element struct {
	name       string
	kind       physical
	repetition int64
	children   int64
}

// footer decodes FileMetaData (parquet.thrift) and checks it against the file's length.
func (f *File) footer(b []byte) error {
	c := &compact{b: b}
	var elements []element
	var rows int64
	c.structure(0, func(id int64, kind byte) bool {
		switch {
		case id == 2 && kind == compactList:
			c.list(func(byte) { elements = append(elements, c.element()) })
		case id == 3 && kind == compactI64:
			rows = c.int()
		case id == 4 && kind == compactList:
			c.list(func(byte) { f.groups = append(f.groups, c.rowGroup()) })
		default:
			return false
		}
		return true
	})
	if c.err != nil {
		return c.err
	}
	if err := f.schema(elements); err != nil {
		return err
	}
	return f.check(rows)
}

func (c *compact) element() element {
	e := element{kind: -1}
	c.structure(1, func(id int64, kind byte) bool {
		switch {
		case id == 1 && kind == compactI32:
			e.kind = physical(c.int())
		case id == 3 && kind == compactI32:
			e.repetition = c.int()
		case id == 4 && kind == compactBinary:
			e.name = string(c.bytes())
		case id == 5 && kind == compactI32:
			e.children = c.int()
		default:
			return false
		}
		return true
	})
	return e
}

func (c *compact) rowGroup() rowGroup {
	var g rowGroup
	c.structure(1, func(id int64, kind byte) bool {
		switch {
		case id == 1 && kind == compactList:
			c.list(func(byte) { g.chunks = append(g.chunks, c.chunk()) })
		case id == 3 && kind == compactI64:
			g.rows = int(c.int())
		default:
			return false
		}
		return true
	})
	return g
}

// chunk decodes ColumnChunk, of which only its ColumnMetaData matters.
func (c *compact) chunk() chunk {
	out := chunk{dictAt: -1, dataAt: -1}
	c.structure(2, func(id int64, kind byte) bool {
		if id != 3 || kind != compactStruct {
			return false
		}
		c.structure(3, func(id int64, kind byte) bool { return c.chunkField(&out, id, kind) })
		return true
	})
	return out
}

func (c *compact) chunkField(out *chunk, id int64, kind byte) bool {
	switch {
	case id == 4 && kind == compactI32:
		out.codec = int32(c.int())
	case id == 7 && kind == compactI64:
		out.size = c.int()
	case id == 9 && kind == compactI64:
		out.dataAt = c.int()
	case id == 11 && kind == compactI64:
		out.dictAt = c.int()
	default:
		return false
	}
	return true
}

// schema takes the leaves of a schema that is one flat table. Nested columns count
// as their leaves, so that chunks and leaves still pair up; no reader can ask for them.
func (f *File) schema(elements []element) error {
	if len(elements) == 0 || elements[0].children < 0 {
		return errors.New("it has no schema")
	}
	for i, e := range elements[1:] {
		if e.children > 0 {
			continue
		}
		// A leaf below a group is named like its place, which is no name of a column of ours.
		name := e.name
		if int64(len(elements)-1) != elements[0].children {
			name = fmt.Sprintf("%s#%d", e.name, i)
		}
		f.columns = append(f.columns, leaf{name: name, kind: e.kind, required: e.repetition == 0})
	}
	if len(f.columns) > f.limits.Columns {
		return fmt.Errorf("it has %d columns, over the limit of %d", len(f.columns), f.limits.Columns)
	}
	return nil
}

// check holds row groups and chunks against the schema and the file's length.
func (f *File) check(rows int64) error {
	if rows < 0 || rows > int64(f.limits.Rows) {
		return fmt.Errorf("it claims %d rows, over the limit of %d", rows, f.limits.Rows)
	}
	f.Rows = int(rows)
	left := rows
	for i := range f.groups {
		g := &f.groups[i]
		if g.rows < 0 || int64(g.rows) > left {
			return fmt.Errorf("row group %d claims %d rows of %d that are left", i, g.rows, left)
		}
		left -= int64(g.rows)
		if len(g.chunks) != len(f.columns) {
			return fmt.Errorf("row group %d has %d columns, the schema %d", i, len(g.chunks), len(f.columns))
		}
		for j := range g.chunks {
			if err := g.chunks[j].place(int64(len(f.data))); err != nil {
				return fmt.Errorf("column %s: %w", f.columns[j].name, err)
			}
		}
	}
	if left != 0 {
		return fmt.Errorf("its row groups lack %d rows", left)
	}
	return nil
}

// place finds where the pages of a chunk lie: the dictionary, if there is one, comes first.
func (c *chunk) place(length int64) error {
	c.first = c.dataAt
	if c.dictAt > 0 && c.dictAt < c.dataAt {
		c.first = c.dictAt
	}
	if c.first < int64(len(magic)) || c.size < 0 || c.first > length || c.size > length-c.first {
		return fmt.Errorf("its pages would lie at %d and take %d bytes of a file of %d", c.first, c.size, length)
	}
	return nil
}
