package archive

import (
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"

	"github.com/inferscope/inferscope/internal/recording/columns"
)

// columnsOf returns the columns of a row type: the fields of a struct with their tag
// `isc:"name" doc:"..."`.
func columnsOf(row reflect.Type) []column {
	out := make([]column, row.NumField())
	for i := range out {
		f := row.Field(i)
		out[i] = column{name: f.Tag.Get("isc"), kind: kindOf(f.Type), packing: packDict, doc: f.Tag.Get("doc")}
	}
	return out
}

func kindOf(t reflect.Type) kind {
	switch t.Kind() {
	case reflect.Int32:
		return int32Kind
	case reflect.Int, reflect.Int64:
		return int64Kind
	case reflect.Uint8, reflect.Uint32:
		return uint32Kind
	case reflect.Uint64:
		return uint64Kind
	case reflect.Bool:
		return boolKind
	case reflect.String:
		return stringKind
	default:
		panic(fmt.Sprintf("a column cannot be of type %v", t)) //nolint:forbidigo // of our own row types only
	}
}

// encodeRows writes a slice of row structs as one Parquet file.
func encodeRows(w io.Writer, codec *zstd.Codec, table string, rows reflect.Value) error {
	columns := columnsOf(rows.Type().Elem())
	return encode(w, codec, table, columns, rows.Len(), func(c, from int, out []parquet.Value) {
		for i := range out {
			out[i] = valueOf(rows.Index(from + i).Field(c))
		}
	})
}

func valueOf(v reflect.Value) parquet.Value {
	switch k := kindOf(v.Type()); k {
	case stringKind:
		// Parquet's strings are UTF-8, and readers refuse a file with others. What came through the
		// daemon's socket is UTF-8 already.
		return parquet.ByteArrayValue([]byte(strings.ToValidUTF8(v.String(), "\uFFFD")))
	case boolKind:
		return parquet.BooleanValue(v.Bool())
	case int32Kind, int64Kind:
		return k.value(uint64(v.Int()))
	default:
		return k.value(v.Uint())
	}
}

// decodeRows reads the rows of a Parquet file into a new slice of a row type. Columns that the file lacks stay
// zero (an older writer had them not), and those that the type lacks are ignored (a newer one has them).
func decodeRows(f *columns.File, row reflect.Type) (reflect.Value, error) {
	rows := reflect.MakeSlice(reflect.SliceOf(row), f.Rows, f.Rows)
	for i, c := range columnsOf(row) {
		if !f.Has(c.name) {
			continue
		}
		if err := decodeColumn(f, c, rows, i); err != nil {
			return rows, err
		}
	}
	return rows, nil
}

func decodeColumn(f *columns.File, c column, rows reflect.Value, at int) error {
	if c.kind == stringKind {
		texts, err := f.Strings(c.name)
		if err != nil {
			return fmt.Errorf("read strings: %w", err)
		}
		for i, s := range texts {
			rows.Index(i).Field(at).SetString(s)
		}
		return nil
	}
	return f.Ints(c.name, func(first int, values []uint64) error {
		for i, v := range values {
			setInt(rows.Index(first+i).Field(at), v)
		}
		return nil
	})
}

func setInt(to reflect.Value, v uint64) {
	switch to.Kind() {
	case reflect.Bool:
		to.SetBool(v != 0)
	case reflect.Int32:
		to.SetInt(int64(int32(uint32(v))))
	case reflect.Int, reflect.Int64:
		to.SetInt(int64(v))
	case reflect.Uint8:
		to.SetUint(v & 0xff)
	case reflect.Uint32:
		to.SetUint(v & 0xffffffff)
	default:
		to.SetUint(v)
	}
}
