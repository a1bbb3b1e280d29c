package archive

import (
	"bytes"
	"fmt"
	"reflect"
	"testing"

	"github.com/inferscope/inferscope/internal/recording/columns"
)

// TestEveryColumnIsReadBack writes rows of every table of names with another value in each field, and reads them.
func TestEveryColumnIsReadBack(t *testing.T) {
	for _, table := range nameTables() {
		rows := reflect.MakeSlice(reflect.SliceOf(table.row), 3, 3)
		for i := range rows.Len() {
			for f := range table.row.NumField() {
				fill(rows.Index(i).Field(f), 1+i+3*f)
			}
		}
		var file bytes.Buffer
		if err := encodeRows(&file, newCodec(), table.name, rows); err != nil {
			t.Errorf("%s: %v", table.name, err)
			continue
		}
		open, err := columns.Open(file.Bytes(), columns.DefaultLimits())
		if err != nil {
			t.Errorf("%s: %v", table.name, err)
			continue
		}
		got, err := decodeRows(open, table.row)
		if err != nil || !reflect.DeepEqual(got.Interface(), rows.Interface()) {
			t.Errorf("%s: wrote %+v, read %+v, %v", table.name, rows, got, err)
		}
	}
}

// fill sets a field to a value that n tells from others.
func fill(v reflect.Value, n int) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(n%2 == 1)
	case reflect.String:
		v.SetString(fmt.Sprintf("text %d", n))
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(int64(n))
	default:
		v.SetUint(uint64(n))
	}
}
