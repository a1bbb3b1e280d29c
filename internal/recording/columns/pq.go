// Package columns reads the Parquet files of a recording as hostile input: whoever made
// the file cannot make it panic, loop, or take more memory than the limits allow.
//
// It reads the part of the format that recordings are written in: one flat table of
// required columns, data pages of version 1, the encodings PLAIN, RLE_DICTIONARY and
// DELTA_BINARY_PACKED, pages that are uncompressed or Zstandard. Columns that nobody asks for may
// be of any kind. The format is that of apache/parquet-format 2.11 (parquet.thrift, Encodings.md).
package columns

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// magic begins and ends every Parquet file.
const magic = "PAR1"

// Limits bound what a file can make a reader hold.
type Limits struct {
	Rows    int   // in one file
	Page    int   // bytes of one page, decompressed
	Columns int   // of one file
	Text    int64 // bytes of all strings that are read
}

// DefaultLimits returns 64 Mi rows, pages of 16 MiB and 256 columns: a recorder's writer stays far
// below (pages of some 256 KiB, files of a few million rows).
func DefaultLimits() Limits {
	return Limits{Rows: 64 << 20, Page: 16 << 20, Columns: 256, Text: 1 << 30}
}

// File is one Parquet file in memory, its footer decoded and checked against its length.
type File struct {
	Rows    int
	data    []byte
	limits  Limits
	columns []leaf
	groups  []rowGroup
	text    int64 // bytes of the strings that were read
}

// Text returns how many bytes of strings were read so far.
func (f *File) Text() int64 { return f.text }

// physical is a physical type of Parquet (parquet.thrift, Type).
type physical int32

// The physical types that are read.
const (
	boolean   physical = 0
	int32s    physical = 1
	int64s    physical = 2
	byteArray physical = 6
)

// leaf is one column of the schema.
type leaf struct {
	name     string
	kind     physical
	required bool
}

// chunk is one column of one row group.
type chunk struct {
	codec       int32
	first, size int64 // where its pages lie in the file, in bytes
	dictAt      int64
	dataAt      int64
}

type rowGroup struct {
	rows   int
	chunks []chunk
}

// Open decodes the footer of a file that is wholly in memory. The file keeps data.
func Open(data []byte, limits Limits) (*File, error) {
	const frame = len(magic) + 4 + len(magic)
	if len(data) < frame || string(data[:4]) != magic || string(data[len(data)-4:]) != magic {
		return nil, errors.New("it is not a Parquet file, or it is cut off")
	}
	length := int64(binary.LittleEndian.Uint32(data[len(data)-8:]))
	if length > int64(len(data)-frame) {
		return nil, fmt.Errorf("its footer claims %d bytes of a file of %d", length, len(data))
	}
	f := &File{data: data, limits: limits}
	end := len(data) - 8
	if err := f.footer(data[end-int(length) : end]); err != nil {
		return nil, fmt.Errorf("its footer: %w", err)
	}
	return f, nil
}

// Has reports whether the file has a column of that name.
func (f *File) Has(name string) bool { return f.find(name) >= 0 }

// Columns returns the names of all columns.
func (f *File) Columns() []string {
	names := make([]string, len(f.columns))
	for i, c := range f.columns {
		names[i] = c.name
	}
	return names
}

func (f *File) find(name string) int {
	for i, c := range f.columns {
		if c.name == name {
			return i
		}
	}
	return -1
}

// column returns the index of a column that must be there, be required, and be of one of these kinds.
func (f *File) column(name string, kinds ...physical) (int, error) {
	i := f.find(name)
	if i < 0 {
		return 0, fmt.Errorf("it has no column %s", name)
	}
	c := f.columns[i]
	if !c.required {
		return 0, fmt.Errorf(
			"its column %s may hold nulls, which recordings have none of: another program wrote the file",
			name,
		)
	}
	for _, k := range kinds {
		if c.kind == k {
			return i, nil
		}
	}
	return 0, fmt.Errorf("its column %s has physical type %d, not the one of the schema", name, c.kind)
}
