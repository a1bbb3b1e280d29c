package columns

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// row has every type that is read, in every encoding.
type row struct {
	Delta32 int32  `parquet:"delta32,delta,zstd"`
	Delta64 int64  `parquet:"delta64,delta,zstd"`
	Dict    int64  `parquet:"dict,dict,zstd"`
	Plain   uint64 `parquet:"plain,plain"`
	Flag    bool   `parquet:"flag"`
	Text    string `parquet:"text,dict,zstd"`
	Words   string `parquet:"words,plain,zstd"`
	Maybe   *int32 `parquet:"maybe,optional"`
}

func write(t testing.TB, rows []row, options ...parquet.WriterOption) []byte {
	t.Helper()
	var b bytes.Buffer
	w := parquet.NewGenericWriter[row](
		&b,
		append([]parquet.WriterOption{parquet.DataPageVersion(1), parquet.PageBufferSize(2000)}, options...)...)
	if _, err := w.Write(rows); err != nil {
		t.Fatal(err)
	}
	must.NoError(t, w.Close())
	return b.Bytes()
}

// column reads a column whole.
func column(t *testing.T, f *File, name string) []uint64 {
	t.Helper()
	var out []uint64
	if err := f.Ints(name, func(_ int, values []uint64) error {
		out = append(out, values...)
		return nil
	}); err != nil {
		t.Fatal(name, err)
	}
	return out
}

// TestAgainstAnotherWriter reads what parquet-go wrote, with extremes, several pages and several row groups.
func TestAgainstAnotherWriter(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, n := range []int{0, 1, 2, 127, 128, 129, 5000} {
		rows := make([]row, n)
		for i := range rows {
			rows[i] = row{
				int32(r.Uint32()),
				int64(r.Uint64()),
				int64(r.Uint64N(9)),
				r.Uint64(),
				r.IntN(2) == 0,
				strings.Repeat("x", r.IntN(4)),
				"w",
				nil,
			}
			if i%7 == 0 {
				rows[i].Delta64, rows[i].Delta32 = math.MinInt64, math.MaxInt32
			}
		}
		f, err := Open(write(t, rows, parquet.MaxRowsPerRowGroup(2000)), DefaultLimits())
		if err != nil || f.Rows != n {
			t.Fatal(n, err)
		}
		delta32 := column(t, f, "delta32")
		delta64 := column(t, f, "delta64")
		dict := column(t, f, "dict")
		plain := column(t, f, "plain")
		flag := column(t, f, "flag")
		text, err := f.Strings("text")
		must.NoError(t, err)
		words, err := f.Strings("words")
		must.NoError(t, err)
		for i, w := range rows {
			if int32(uint32(delta32[i])) != w.Delta32 || int64(delta64[i]) != w.Delta64 || int64(dict[i]) != w.Dict ||
				plain[i] != w.Plain ||
				(flag[i] == 1) != w.Flag ||
				text[i] != w.Text ||
				words[i] != w.Words {
				t.Fatalf("row %d of %d is %+v, read as %v %v %v %v %v %q",
					i, n, w, delta32[i], delta64[i], dict[i], plain[i], flag[i], text[i])
			}
		}
		if err := f.Ints("maybe", nil); err == nil || !strings.Contains(err.Error(), "nulls") {
			t.Errorf("a column with nulls: %v", err)
		}
		if err := f.Ints("nothing", nil); err == nil {
			t.Error("a column that is not there was read")
		}
	}
}

// TestEveryCutAndFlipIsAnErrorOrHarmless: no damage makes it panic, or give more rows than it says.
func TestEveryCutAndFlipIsAnErrorOrHarmless(t *testing.T) {
	rows := make([]row, 300)
	for i := range rows {
		rows[i] = row{Delta64: int64(i * i), Text: "abc"}
	}
	good := write(t, rows)
	try := func(data []byte) {
		f, err := Open(data, Limits{Rows: 1000, Page: 1 << 16, Columns: 20})
		if err != nil {
			return
		}
		for _, c := range f.Columns() {
			_ = f.Ints(c, func(at int, values []uint64) error {
				if at+len(values) > f.Rows {
					t.Fatal("more rows than it says")
				}
				return nil
			})
			_, _ = f.Strings(c)
		}
	}
	for i := 0; i < len(good); i += 5 {
		try(good[:i])
		bad := slices.Clone(good)
		bad[i] ^= []byte{1, 0x80, 0xff}[i%3]
		try(bad)
	}
}
