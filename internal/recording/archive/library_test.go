package archive_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"

	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/recording/columns"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// library reads a Parquet file by parquet-go, held to the limits of package columns as far as its API allows, and with
// its panics as errors. It is here to be compared with columns: docs/architecture.md has the decision.
type library struct {
	file *parquet.File
	at   map[string]int
}

// caught makes an error of a panic.
func caught(err *error, panics *int) {
	if r := recover(); r != nil {
		*panics++
		*err = fmt.Errorf("panic: %v", r)
	}
}

func openLibrary(data []byte, limits columns.Limits, panics *int) (l *library, err error) {
	defer caught(&err, panics)
	const frame = 12
	if len(data) < frame || int(binary.LittleEndian.Uint32(data[len(data)-8:])) > len(data)-frame {
		return nil, errors.New("its footer is longer than the file")
	}
	file, err := parquet.OpenFile(bytes.NewReader(data), int64(len(data)), parquet.SkipPageIndex(true),
		parquet.SkipBloomFilters(true))
	if err != nil {
		return nil, err
	}
	if n := file.NumRows(); n < 0 || n > int64(limits.Rows) || len(file.Root().Columns()) > limits.Columns {
		return nil, errors.New("it is over a limit")
	}
	l = &library{file, map[string]int{}}
	for _, c := range file.Root().Columns() {
		if c.Leaf() && c.Required() {
			l.at[c.Name()] = c.Index()
		}
	}
	return l, nil
}

// values hands the values of a column of integers or booleans to sink.
func (l *library) values(name string, panics *int, sink func(at int, values []uint64) error) (err error) {
	defer caught(&err, panics)
	var buf []uint64
	at := 0
	for _, group := range l.file.RowGroups() {
		pages := group.ColumnChunks()[l.at[name]].Pages()
		defer pages.Close()
		for {
			page, err := pages.ReadPage()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			n := int(page.NumValues())
			if n > int(l.file.NumRows())-at {
				return errors.New("a page has more values than the file has rows")
			}
			if buf = decodePage(page, buf[:0]); len(buf) < n {
				return errors.New("a page has fewer values than it says")
			}
			if err := sink(at, buf[:n]); err != nil {
				return err
			}
			at += n
			parquet.Release(page)
		}
	}
	if at != int(l.file.NumRows()) {
		return errors.New("rows are missing")
	}
	return nil
}

// decodePage appends the values of a page, by way of its dictionary where it has one.
func decodePage(page parquet.Page, out []uint64) []uint64 {
	data := page.Data()
	if dict := page.Dictionary(); dict != nil {
		words := plainValues(dict.Page(), nil)
		for _, i := range data.Int32() {
			out = append(out, words[i])
		}
		return out
	}
	return plainValues(page, out)
}

func plainValues(page parquet.Page, out []uint64) []uint64 {
	data := page.Data()
	switch page.Type().Kind() {
	case parquet.Boolean:
		bits := data.Boolean()
		for i := range int(page.NumValues()) {
			out = append(out, uint64(bits[i/8]>>(i%8)&1))
		}
	case parquet.Int32:
		raw, _ := data.Data()
		for ; len(raw) >= 4; raw = raw[4:] {
			out = append(out, uint64(binary.NativeEndian.Uint32(raw)))
		}
	case parquet.Int64:
		raw, _ := data.Data()
		for ; len(raw) >= 8; raw = raw[8:] {
			out = append(out, binary.NativeEndian.Uint64(raw))
		}
	}
	return out
}

// eventFiles returns the files of events of a recording of a GPT-2 decode.
func eventFiles(t testing.TB, seconds int) (out [][]byte) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "a.isc")
	must.NoError(t, archive.Write(dir, decode(seconds), nil))
	for _, name := range []string{"launches", "kernels", "calls", "samples", "thread_states"} {
		files, err := filepath.Glob(filepath.Join(dir, name, "*.parquet"))
		must.NoError(t, err)
		for _, file := range files {
			data, err := os.ReadFile(file)
			must.NoError(t, err)
			out = append(out, data)
		}
	}
	return out
}

// BenchmarkLibrary reads all columns of a recording's events by package columns and by parquet-go, in turns.
func BenchmarkLibrary(b *testing.B) {
	files, limits := eventFiles(b, 10), columns.DefaultLimits()
	var own, other time.Duration
	for b.Loop() {
		for _, data := range files {
			var sums [2]uint64
			sum := func(to *uint64) func(int, []uint64) error {
				return func(_ int, values []uint64) error {
					for _, v := range values {
						*to += v
					}
					return nil
				}
			}
			begin := time.Now()
			file, err := columns.Open(data, limits)
			must.NoError(b, err)
			for _, name := range file.Columns() {
				must.NoError(b, file.Ints(name, sum(&sums[0])))
			}
			own += time.Since(begin)
			begin = time.Now()
			panics := 0
			l, err := openLibrary(data, limits, &panics)
			must.NoError(b, err)
			for _, name := range file.Columns() {
				must.NoError(b, l.values(name, &panics, sum(&sums[1])))
			}
			other += time.Since(begin)
			if sums[0] != sums[1] {
				b.Fatal("they read other values")
			}
		}
	}
	b.ReportMetric(float64(own.Milliseconds())/float64(b.N), "own-ms/op")
	b.ReportMetric(float64(other.Milliseconds())/float64(b.N), "library-ms/op")
	b.ReportMetric(other.Seconds()/own.Seconds(), "ratio")
}

// TestLibraryOnHostileFiles reads hostile files by both readers. It fails where package columns does not stand them,
// and logs what parquet-go makes of them.
func TestLibraryOnHostileFiles(t *testing.T) {
	limits := columns.Limits{Rows: 1 << 16, Page: 1 << 20, Columns: 64}
	small, err := os.ReadFile(filepath.Join(small(t), "kernels", "000001.parquet"))
	must.NoError(t, err)
	if kind := os.Getenv(envHostile); kind != "" { // the process that reads by the library
		readByLibrary(t, small, kind, limits)
		return
	}
	for _, kind := range []string{hostileDamage, hostileBomb, hostileNesting} {
		if kind != hostileDamage { // TestDamagedParquet
			refusedByColumns(t, hostile(t, small, kind), limits)
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), envHostile+"="+kind)
		out, err := cmd.CombinedOutput()
		t.Logf("%s: parquet-go: %v: %.300s", kind, err, out)
	}
}

func refusedByColumns(t *testing.T, data []byte, limits columns.Limits) {
	t.Helper()
	before := allocated()
	file, err := columns.Open(data, limits)
	must.NoError(t, err)
	if err := file.Ints(hostileColumn, func(int, []uint64) error { return nil }); err == nil {
		t.Error("it was read")
	}
	if taken := allocated() - before; taken > 64<<20 {
		t.Errorf("%d MiB taken for %d bytes", taken>>20, len(data))
	}
}

// readByLibrary logs what becomes of hostile files of a kind: the process may end by it.
func readByLibrary(t *testing.T, good []byte, kind string, limits columns.Limits) {
	t.Helper()
	files, panics, length, most := 0, 0, 0, uint64(0)
	read := func(data []byte) {
		before := allocated()
		files, length = files+1, max(length, len(data))
		l, err := openLibrary(data, limits, &panics)
		if err == nil {
			for name := range l.at {
				_ = l.values(name, &panics, func(int, []uint64) error { return nil })
			}
		}
		most = max(most, allocated()-before)
	}
	if kind == hostileDamage {
		damaged(t, 500, read)
	} else {
		read(hostile(t, good, kind))
	}
	t.Logf("%d files of up to %d KiB, %d panics, up to %d MiB taken by one", files, length>>10, panics, most>>20)
}

// envHostile has a test read a hostile file of a kind by the library, in a process of its own: it may not survive it.
const envHostile = "INFERSCOPE_HOSTILE_PARQUET"

// hostileColumn is the column of the hostile page.
const hostileColumn = "start_ns"

const (
	hostileDamage  = "damage"  // as of TestDamagedParquet
	hostileBomb    = "bomb"    // a page of 256 MiB that says that it has 100 bytes
	hostileNesting = "nesting" // a page whose header has an unknown field of 16 Mi nested structures
)

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// hostile returns a file whose column hostileColumn has one page of a kind.
func hostile(t *testing.T, good []byte, kind string) []byte {
	t.Helper()
	file, err := parquet.OpenFile(bytes.NewReader(good), int64(len(good)))
	must.NoError(t, err)
	var page []byte
	switch kind {
	case hostileBomb:
		encoder, err := zstd.NewWriter(nil)
		must.NoError(t, err)
		body := encoder.EncodeAll(make([]byte, 256<<20), nil)
		page, err = thrift.Marshal(&thrift.CompactProtocol{}, format.PageHeader{
			Type: format.DataPage, UncompressedPageSize: 100, CompressedPageSize: int32(len(body)),
			DataPageHeader: thrift.Null[format.DataPageHeader]{Valid: true, V: format.DataPageHeader{NumValues: 10}},
		})
		must.NoError(t, err)
		page = append(page, body...)
	case hostileNesting:
		page = bytes.Repeat([]byte{0xfc}, 16<<20) // field 15 later: a structure
	}
	meta := *file.Metadata()
	for i := range meta.RowGroups[0].Columns {
		c := &meta.RowGroups[0].Columns[i].MetaData
		if c.PathInSchema[0] == hostileColumn {
			c.DataPageOffset, c.DictionaryPageOffset = int64(len(good)), 0
			c.TotalCompressedSize, c.TotalUncompressedSize = int64(len(page)), int64(len(page))
		}
	}
	footer, err := thrift.Marshal(&thrift.CompactProtocol{}, meta)
	must.NoError(t, err)
	out := append(bytes.Clone(good), page...)
	out = append(out, footer...)
	return append(binary.LittleEndian.AppendUint32(out, uint32(len(footer))), "PAR1"...)
}
