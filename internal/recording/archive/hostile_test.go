package archive_test

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/recording/columns"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// small writes a small recording and returns its folder.
func small(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "a.isc")
	must.NoError(t, archive.Write(dir, random(rand.New(rand.NewPCG(5, 5)), 500), nil))
	return dir
}

// refused holds that reading fails with these words.
func refused(t *testing.T, place string, words ...string) {
	t.Helper()
	rec, err := archive.Read(place, archive.DefaultLimits())
	if err == nil {
		t.Fatalf("it was read: %d events", len(rec.Events))
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error lacks %q: %v", w, err)
		}
	}
}

func TestDamageIsSeen(t *testing.T) {
	dir := small(t)
	file := filepath.Join(dir, "kernels", "000001.parquet")
	data, err := os.ReadFile(file)
	must.NoError(t, err)
	data[len(data)/2] ^= 1
	must.NoError(t, os.WriteFile(file, data, 0o600))
	refused(t, dir, "kernels/000001.parquet", "SHA-256", "damaged")
	if in, err := archive.Inspect(dir, true); err != nil || len(in.Damaged) != 1 {
		t.Errorf("inspection: %+v, %v", in, err)
	}
	must.NoError(t, os.Remove(file))
	refused(t, dir, "kernels/000001.parquet", "no such file")
}

// TestALinkLeadsNowhere: a file of a recording that is a symbolic link is not followed.
func TestALinkLeadsNowhere(t *testing.T) {
	dir := small(t)
	file := filepath.Join(dir, "kernels", "000001.parquet")
	must.NoError(t, os.Rename(file, dir+".outside"))
	must.NoError(t, os.Symlink(dir+".outside", file))
	refused(t, dir, "no regular file")
}

func TestManifestsThatLeadOut(t *testing.T) {
	for _, name := range []string{
		"../../../etc/passwd", "kernels/../../x.parquet", "/etc/passwd", "calls/1.parquet", "kernels/..parquet",
		"kernels/a\\b.parquet",
	} {
		dir := small(t)
		path := filepath.Join(dir, "manifest.json")
		text, err := os.ReadFile(path)
		must.NoError(t, err)
		quoted, _ := json.Marshal(name)
		text = bytes.Replace(text, []byte(`"kernels/000001.parquet"`), quoted, 1)
		must.NoError(t, os.WriteFile(path, text, 0o600))
		refused(t, dir, "no name of one of its files")
	}
}

// zipOf makes a zip file; each entry is name and content.
func zipOf(t *testing.T, entries ...[2]string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.isc.zip")
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, e := range entries {
		w, err := z.Create(e[0])
		must.NoError(t, err)
		if _, err := w.Write([]byte(e[1])); err != nil {
			t.Fatal(err)
		}
	}
	must.NoError(t, z.Close())
	must.NoError(t, os.WriteFile(path, b.Bytes(), 0o600))
	return path
}

func TestHostileZips(t *testing.T) {
	good := [2]string{"a.isc/manifest.json", "{}"}
	huge := strings.Repeat("\x00", 200<<20)
	for name, c := range map[string]struct {
		zip  string
		word string
	}{
		"traversal":  {zipOf(t, good, [2]string{"a.isc/../../evil", "x"}), "not in the recording's folder"},
		"absolute":   {zipOf(t, good, [2]string{"/etc/evil", "x"}), "not in the recording's folder"},
		"elsewhere":  {zipOf(t, good, [2]string{"b.isc/calls/1.parquet", "x"}), "not in the recording's folder"},
		"backslash":  {zipOf(t, good, [2]string{"a.isc/..\\evil", "x"}), "not in the recording's folder"},
		"twice":      {zipOf(t, good, good), "twice"},
		"bomb":       {zipOf(t, good, [2]string{"a.isc/calls/1.parquet", huge}), "which no recording does"},
		"no content": {zipOf(t, good), "not one of InferScope"},
		"nothing":    {zipOf(t), "manifest.json"},
	} {
		t.Run(name, func(t *testing.T) {
			refused(t, c.zip, c.word)
			out := filepath.Join(t.TempDir(), "out.isc")
			if err := archive.Unpack(c.zip, out); err == nil {
				t.Error("it was unpacked")
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(filepath.Dir(out)), "evil")); err == nil {
				t.Error("it wrote outside of its folder")
			}
		})
	}
}

// TestWhatIsUnknownIsKept: tables and files of a newer program survive packing, and do not hinder reading.
func TestWhatIsUnknownIsKept(t *testing.T) {
	dir := small(t)
	for name, text := range map[string]string{"future_table/1.parquet": "PAR1 of the future", "notes.txt": "mine"} {
		path := filepath.Join(dir, name)
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	// What a killed writer left does not travel.
	must.NoError(t, os.WriteFile(filepath.Join(dir, "kernels", "000009.parquet.tmp"), []byte("x"), 0o600))
	again := filepath.Join(t.TempDir(), "b.isc")
	must.NoError(t, archive.Pack(dir, again+".zip", false))
	must.NoError(t, archive.Unpack(again+".zip", again))
	for _, name := range []string{"future_table/1.parquet", "notes.txt"} {
		if _, err := os.Stat(filepath.Join(again, name)); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(again, "kernels", "000009.parquet.tmp")); err == nil {
		t.Error("an unfinished file was packed")
	}
	if _, err := archive.Read(again, archive.DefaultLimits()); err != nil {
		t.Error(err)
	}
	in, err := archive.Inspect(dir, false)
	if err != nil || len(in.Unknown) != 2 || len(in.Unfinished) != 1 {
		t.Errorf("inspection: %+v, %v", in, err)
	}
}

func TestForceRemovesRecordingsOnly(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "thesis.tex"), []byte("x"), 0o600))
	if _, err := archive.Create(dir, true); err == nil {
		t.Error("a folder that is no recording was replaced")
	}
	if _, err := os.Stat(filepath.Join(dir, "thesis.tex")); err != nil {
		t.Error(err)
	}
	old := small(t)
	if _, err := archive.Create(old, false); err == nil {
		t.Error("a recording was replaced without force")
	}
	if _, err := archive.Create(old, true); err != nil {
		t.Error(err)
	}
	refused(t, old, "no stretch of time")
}

// FuzzParquet reads arbitrary bytes as a Parquet file, every column in every way.
func FuzzParquet(f *testing.F) {
	dir := small(f)
	for _, name := range []string{"kernels", "processes", "functions", "thread_states"} {
		files, _ := filepath.Glob(filepath.Join(dir, name, "*.parquet"))
		for _, file := range files {
			data, err := os.ReadFile(file)
			must.NoError(f, err)
			f.Add(data)
		}
	}
	fuzzing.Run(f, readAll)
}

// readAll reads every column of a Parquet file in every way, with small limits.
func readAll(t *testing.T, data []byte) {
	t.Helper()
	file, err := columns.Open(data, columns.Limits{Rows: 1 << 16, Page: 1 << 20, Columns: 64})
	if err != nil {
		return
	}
	for _, c := range file.Columns() {
		rows := 0
		err := file.Ints(c, func(at int, values []uint64) error {
			if at != rows || at+len(values) > file.Rows {
				t.Fatalf("rows %d to %d after %d of %d", at, at+len(values), rows, file.Rows)
			}
			rows += len(values)
			return nil
		})
		if err == nil && rows != file.Rows {
			t.Fatalf("%d of %d rows, and no error", rows, file.Rows)
		}
		if texts, err := file.Strings(c); err == nil && len(texts) != file.Rows {
			t.Fatalf("%d strings of %d rows, and no error", len(texts), file.Rows)
		}
	}
}

// TestDamagedParquet reads real files with damage in up to four places, most of it in the footer, which says how to
// read the rest: many more files than fuzzing gets to. INFERSCOPE_DAMAGES says how many of each.
func TestDamagedParquet(t *testing.T) {
	rounds := 500
	if text := os.Getenv("INFERSCOPE_DAMAGES"); text != "" {
		n, err := strconv.Atoi(text)
		must.NoError(t, err)
		rounds = n
	}
	damaged(t, rounds, func(data []byte) { readAll(t, data) })
}

// damaged makes rounds files of each of three real ones.
func damaged(t *testing.T, rounds int, each func(data []byte)) {
	t.Helper()
	dir, r := small(t), rand.New(rand.NewPCG(7, 7))
	for _, name := range []string{"kernels", "processes", "thread_states"} {
		whole, err := os.ReadFile(filepath.Join(dir, name, "000001.parquet"))
		must.NoError(t, err)
		footer := int(binary.LittleEndian.Uint32(whole[len(whole)-8:])) + 8
		for range rounds {
			data := bytes.Clone(whole)
			for range 1 + r.IntN(4) {
				at := r.IntN(len(data))
				if r.IntN(4) > 0 {
					at = len(data) - 1 - r.IntN(footer)
				}
				data[at] = []byte{byte(r.Uint32()), 0, 0xff, data[at] + 1, data[at] ^ 0x80}[r.IntN(5)]
			}
			each(data)
		}
	}
}

// FuzzZip reads a packed recording with damage at two places, and unpacks it: what comes out lies in its folder, and is
// what was packed, or is refused.
func FuzzZip(f *testing.F) {
	dir := small(f)
	place := filepath.Join(f.TempDir(), "a.isc.zip")
	must.NoError(f, archive.Pack(dir, place, false))
	whole, err := os.ReadFile(place)
	must.NoError(f, err)
	first, err := archive.Read(place, archive.DefaultLimits())
	must.NoError(f, err)
	directory := uint32(bytes.Index(whole, []byte("PK\x01\x02")))
	f.Add(uint32(0), []byte{0}, uint32(30), []byte("../"), false)
	f.Add(directory+20, []byte{0xff, 0xff, 0xff, 0x7f}, directory+46, []byte("/etc"), false)
	f.Add(uint32(len(whole)-22), []byte{0}, uint32(len(whole)-12), []byte{0xff, 0xff}, false)
	f.Add(uint32(4), []byte{1}, uint32(len(whole)/2), []byte{2}, true)
	fuzzing.Run(f, func(t *testing.T, at uint32, damage []byte, also uint32, more []byte, cut bool) {
		data := bytes.Clone(whole)
		copy(data[int(at)%len(data):], damage)
		if cut {
			data = data[:int(also)%len(data)]
		} else {
			copy(data[int(also)%len(data):], more)
		}
		folder := t.TempDir()
		place, out := filepath.Join(folder, "x.isc.zip"), filepath.Join(folder, "x.isc")
		must.NoError(t, os.WriteFile(place, data, 0o600))
		rec, err := archive.Read(place, archive.Limits{Events: 1 << 16, Names: 1 << 16})
		if err == nil && !slices.Equal(rec.Events, first.Events) {
			t.Errorf("%d other events were read, and no error", len(rec.Events))
		}
		_, _ = archive.Inspect(place, true)
		_ = archive.Unpack(place, out)
		entries, err := os.ReadDir(folder)
		if err != nil || len(entries) > 2 {
			t.Errorf("it wrote beside its folder: %v, %v", entries, err)
		}
	})
}

// FuzzManifest reads a recording with an arbitrary manifest.
func FuzzManifest(f *testing.F) {
	dir := small(f)
	text, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	must.NoError(f, err)
	f.Add(text)
	fuzzing.Run(f, func(t *testing.T, text []byte) {
		must.NoError(t, os.WriteFile(filepath.Join(dir, "manifest.json"), text, 0o600))
		_, _ = archive.Read(dir, archive.Limits{Events: 1 << 16, Names: 1 << 16})
		_, _ = archive.Inspect(dir, true)
	})
}
