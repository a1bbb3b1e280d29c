package archive

import (
	"fmt"
	"io"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"
	"github.com/parquet-go/parquet-go/encoding"

	"github.com/inferscope/inferscope/internal/format/version"
)

// pageBytes is the size of a page before compression. A reader holds one of each column.
const pageBytes = 256 << 10

// batch is how many values go to the encoder at a time.
const batch = 1024

// source yields values of a column of a table: those of the rows from a row on, as many as out has room for.
type source func(column, from int, out []parquet.Value)

// newCodec returns the compression of all pages. It is shared, because making a compressor takes memory and time, and
// most tables of a stretch have small pages.
func newCodec() *zstd.Codec { return &zstd.Codec{Level: zstd.SpeedDefault, Concurrency: encoders} }

// encoders is how many tables are encoded at a time: a recording is made beside the program that is watched.
const encoders = 2

// encode writes a table as one Parquet file with one row group.
func encode(w io.Writer, codec *zstd.Codec, table string, columns []column, rows int, values source) error {
	out := parquet.NewWriter(w, schemaOf(codec, table, columns),
		parquet.CreatedBy("inferscope", version.String(), ""), parquet.DataPageVersion(1),
		parquet.PageBufferSize(pageBytes), parquet.DictionaryMaxBytes(pageBytes),
		parquet.MaxRowsPerRowGroup(maxFileRows))
	buf := make([]parquet.Value, batch)
	for i, c := range out.ColumnWriters() {
		for from := 0; from < rows; from += batch {
			part := buf[:min(batch, rows-from)]
			values(i, from, part)
			if _, err := c.WriteRowValues(part); err != nil {
				return fmt.Errorf("column %s: %w", columns[i].name, err)
			}
		}
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("table %s: %w", table, err)
	}
	return nil
}

// maxFileRows is the most rows of a file: columns.DefaultLimits takes as many.
const maxFileRows = 64 << 20

// schemaOf makes a flat schema with the columns in their order, all required.
func schemaOf(codec *zstd.Codec, table string, columns []column) *parquet.Schema {
	group := parquet.Group{}
	for _, c := range columns {
		group[c.name] = parquet.Compressed(parquet.Encoded(c.kind.node(), c.packing.encoding(c.kind)), codec)
	}
	fields := map[string]parquet.Field{}
	for _, f := range group.Fields() {
		fields[f.Name()] = f
	}
	o := ordered{Group: group}
	for _, c := range columns {
		o.fields = append(o.fields, fields[c.name])
	}
	return parquet.NewSchema(table, o)
}

// ordered is a group whose fields are in the order that people read them in; parquet.Group sorts them by name.
type ordered struct {
	parquet.Group
	fields []parquet.Field
}

// Fields returns the fields in their order.
func (o ordered) Fields() []parquet.Field { return o.fields }

func (k kind) node() parquet.Node {
	switch k {
	case int32Kind:
		return parquet.Int(32)
	case int64Kind:
		return parquet.Int(64)
	case uint32Kind:
		return parquet.Uint(32)
	case uint64Kind:
		return parquet.Uint(64)
	case boolKind:
		return parquet.Leaf(parquet.BooleanType)
	}
	return parquet.String()
}

func (k kind) value(v uint64) parquet.Value {
	switch k {
	case int32Kind, uint32Kind:
		return parquet.Int32Value(int32(uint32(v)))
	case boolKind:
		return parquet.BooleanValue(v != 0)
	}
	return parquet.Int64Value(int64(v))
}

func (p packing) encoding(k kind) encoding.Encoding {
	switch {
	case k == boolKind:
		return &parquet.Plain
	case p == packDelta:
		return &parquet.DeltaBinaryPacked
	}
	return &parquet.RLEDictionary
}
