package columns

import (
	"fmt"
	"strings"

	"github.com/inferscope/inferscope/internal/recording/memlimit"
)

// Ints hands the values of an integer or boolean column to sink, a page at a time and in order: at is the row
// of the first. A 32-bit value comes in the low half, without its sign extended. values is valid until sink returns.
func (f *File) Ints(name string, sink func(at int, values []uint64) error) error {
	i, err := f.column(name, int32s, int64s, boolean)
	if err != nil {
		return err
	}
	kind := f.columns[i].kind
	var buf []uint64
	var dict []uint64
	return f.walk(i, func(p *page, at int) error {
		if p.kind == dictionaryPage {
			dict, err = fit(dict, p)
			if err != nil {
				return err
			}
			return ints(p, kind, dict)
		}
		if buf, err = fit(buf, p); err != nil {
			return err
		}
		if err := decodeInts(p, kind, buf, dict); err != nil {
			return err
		}
		return sink(at, buf)
	})
}

// fit returns room for the values of a page. The walk has checked a data page against the rows; a
// dictionary's values take at least 4 bytes each.
func fit(buf []uint64, p *page) ([]uint64, error) {
	if p.kind == dictionaryPage && p.values > len(p.data)/4 {
		return nil, fmt.Errorf("a dictionary claims %d values in %d bytes", p.values, len(p.data))
	}
	if cap(buf) < p.values {
		buf = make([]uint64, p.values)
	}
	return buf[:p.values], nil
}

func decodeInts(p *page, kind physical, out, dict []uint64) error {
	if p.encoding != rleDictionary && p.encoding != plainDictionary {
		return ints(p, kind, out)
	}
	if err := indexes(p.data, out, len(dict)); err != nil {
		return err
	}
	for i, v := range out {
		out[i] = dict[v]
	}
	return nil
}

// ints decodes integers that are not in a dictionary.
func ints(p *page, kind physical, out []uint64) error {
	switch {
	case p.encoding == deltaPacked && kind == int32s:
		return deltas(p.data, out, 32)
	case p.encoding == deltaPacked && kind == int64s:
		return deltas(p.data, out, 64)
	case p.encoding != plain && (p.encoding != plainDictionary || p.kind != dictionaryPage):
		return fmt.Errorf("encoding %d is not one of recordings", p.encoding)
	case kind == int32s:
		return plainInts(p.data, out, 4)
	case kind == int64s:
		return plainInts(p.data, out, 8)
	}
	return plainBools(p.data, out)
}

// Strings returns the values of a string column. Those of a dictionary share their memory.
func (f *File) Strings(name string) ([]string, error) {
	i, err := f.column(name, byteArray)
	if err != nil {
		return nil, err
	}
	out := make([]string, 0, min(f.Rows, 1<<16))
	var dict []string
	err = f.walk(i, func(p *page, _ int) error {
		if f.text += int64(len(p.data)); f.text > f.limits.Text {
			return fmt.Errorf("its strings have more than %d bytes, the limit: %w", f.limits.Text, memlimit.ErrExceeded)
		}
		if p.kind == dictionaryPage {
			if p.values > len(p.data)/4 {
				return fmt.Errorf("a dictionary claims %d values in %d bytes", p.values, len(p.data))
			}
			dict = make([]string, p.values)
			return plainStrings(p.data, dict)
		}
		page, err := decodeStrings(p, dict)
		out = append(out, page...)
		return err
	})
	return out, err
}

func decodeStrings(p *page, dict []string) ([]string, error) {
	switch p.encoding {
	case plain:
		if p.values > len(p.data)/4 {
			return nil, fmt.Errorf("a page claims %d strings in %d bytes", p.values, len(p.data))
		}
		out := make([]string, p.values)
		return out, plainStrings(p.data, out)
	case rleDictionary, plainDictionary:
		at := make([]uint64, p.values)
		if err := indexes(p.data, at, len(dict)); err != nil {
			return nil, err
		}
		out := make([]string, p.values)
		for i, v := range at {
			out[i] = dict[v]
		}
		return out, nil
	}
	return nil, fmt.Errorf("encoding %d is not one of recordings", p.encoding)
}

// maxPageValues bounds the values of one data page, and so the memory of decoding it (8 bytes each).
const maxPageValues = 1 << 20

// walk calls each for the pages of a column, in order; at is the row of a data page's first value.
func (f *File) walk(column int, each func(p *page, at int) error) error {
	at := 0
	for i := range f.groups {
		g := &f.groups[i]
		if err := f.walkChunk(&g.chunks[column], at, g.rows, each); err != nil {
			return fmt.Errorf("column %s: %w", strings.ToValidUTF8(f.columns[column].name, "?"), err)
		}
		at += g.rows
	}
	return nil
}

func (f *File) walkChunk(c *chunk, at, rows int, each func(p *page, at int) error) error {
	in, err := f.pages(c)
	if err != nil {
		return err
	}
	defer in.close()
	for end := at + rows; at < end; {
		p, err := in.next()
		if err != nil {
			return err
		}
		switch p.kind {
		case indexPage:
			continue
		case dictionaryPage:
		case dataPage:
			if p.values == 0 || p.values > end-at || p.values > maxPageValues {
				return fmt.Errorf("a page claims %d values where %d rows are left", p.values, end-at)
			}
		default:
			return fmt.Errorf("pages of type %d are not those of recordings", p.kind)
		}
		if err := each(&p, at); err != nil {
			return err
		}
		if p.kind == dataPage {
			at += p.values
		}
	}
	return nil
}
