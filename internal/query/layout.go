package query

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/inferscope/inferscope/internal/fleet"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/recording/memlimit"
)

// Bounds of what one query is about.
const (
	maxRecordings = 20_000
	maxFiles      = 200_000
	minMemory     = 64 << 20 // bytes, for DuckDB
)

const hintDamaged = "inferscope info --verify tells what is wrong with it"

// layout is what a query reads:
//
//	DIR/N/r              recording number N: its folder, or a link to it
//	DIR/N/TABLE.parquet  its small tables
//	DIR/0/TABLE.parquet  small tables without rows, which give the columns where no recording has one
//	DIR/recordings.parquet, whose rows are numbered from 1
type layout struct {
	dir        string
	recordings string              // file of the list of recordings
	files      map[string][]string // by table
	raw        []string            // tables that are views of schema raw

	folders []string // of recordings that are linked to, resolved
	rows    []fleet.Row
	without map[string]int // recordings that lack a table that is asked for
	damaged []string       // recordings that are left out, and why
	count   int            // of files
}

// newLayout begins a layout for a statement with these words.
func newLayout(dir string, words map[string]bool) (*layout, error) {
	l := &layout{
		dir:        dir,
		recordings: filepath.Join(dir, "recordings.parquet"),
		files:      map[string][]string{},
		without:    map[string]int{},
	}
	if words["raw"] {
		for w := range words {
			if archive.Columns(w) != nil {
				l.raw = append(l.raw, w)
			}
		}
		slices.Sort(l.raw)
	}
	empty := filepath.Join(dir, "0")
	if err := os.MkdirAll(empty, 0o700); err != nil {
		return nil, err
	}
	findings, err := fleet.Table(findingsTable, []fleet.FindingRow{})
	if err != nil {
		return nil, err
	}
	parts, err := fleet.Table(gpuTable, []fleet.PartRow{})
	if err != nil {
		return nil, err
	}
	threads, err := fleet.Table(threadsTable, []fleet.ThreadRow{})
	if err != nil {
		return nil, err
	}
	return l, l.small(empty, []fleet.SmallTable{findings, parts, threads})
}

// small writes small tables of a recording into its folder.
func (l *layout) small(folder string, tables []fleet.SmallTable) error {
	for _, t := range tables {
		file := filepath.Join(folder, t.Name+".parquet")
		if err := os.WriteFile(file, t.Data, 0o600); err != nil {
			return err
		}
		if err := l.file(t.Name, file); err != nil {
			return err
		}
	}
	return nil
}

func (l *layout) file(table, name string) error {
	if l.count++; l.count > maxFiles {
		return clierror.New(clierror.General, "query less of them at once",
			fmt.Errorf("the recordings have more than %d files", maxFiles))
	}
	l.files[table] = append(l.files[table], name)
	return nil
}

// next makes the folder of the next recording, whose number is its row in the list.
func (l *layout) next(r fleet.Row) (string, error) {
	if len(l.rows) >= maxRecordings {
		return "", clierror.New(clierror.General, "query less of them at once",
			fmt.Errorf("there are more than %d recordings", maxRecordings))
	}
	l.rows = append(l.rows, r)
	folder := filepath.Join(l.dir, fmt.Sprint(len(l.rows)))
	return folder, os.MkdirAll(folder, 0o700)
}

// table takes the files of a table of a recording in folder, those that its manifest lists.
func (l *layout) table(name, folder string, m *archive.Manifest) error {
	for _, f := range m.Tables[name].Files {
		file := filepath.Join(folder, filepath.FromSlash(f.Name))
		if !filepath.IsLocal(f.Name) || filepath.Dir(f.Name) != name || strings.ContainsAny(f.Name, "*?[") {
			return fmt.Errorf("%q is no file of table %s", format.Clean(f.Name), name)
		}
		// DuckDB follows links, and would wait for a pipe.
		if info, err := os.Lstat(file); err != nil || !info.Mode().IsRegular() {
			return errors.Join(fmt.Errorf("%s is no file of a recording", format.Clean(f.Name)), err)
		}
		if info, err := os.Lstat(filepath.Dir(file)); err != nil || !info.IsDir() {
			return errors.Join(fmt.Errorf("%s is no folder of a recording", name), err)
		}
		if err := l.file(name, file); err != nil {
			return err
		}
	}
	return nil
}

// link makes a folder of a recording readable under another name.
func (l *layout) link(folder, name string) error {
	whole, err := filepath.EvalSymlinks(folder)
	if err != nil {
		return err
	}
	l.folders = append(l.folders, whole)
	return os.Symlink(whole, name)
}

// finish writes the list of recordings.
func (l *layout) finish() error {
	t, err := fleet.Table("recordings", l.rows)
	if err != nil {
		return err
	}
	return os.WriteFile(l.recordings, t.Data, 0o600)
}

// damagedError is about one recording that cannot be read.
type damagedError struct{ cause error }

// Error returns the message of the cause.
func (e *damagedError) Error() string { return e.cause.Error() }

// Unwrap returns the cause.
func (e *damagedError) Unwrap() error { return e.cause }

// Local are the recordings at a place on the disk.
type Local struct {
	Path      string
	MaxMemory int64 // bytes for reading one of them
	// Progress is called before each recording that is analyzed; nil for nobody.
	Progress func(done, all int)
}

// add lays recordings out: one in a folder or packed, or all in the folder.
func (s Local) add(ctx context.Context, l *layout, words map[string]bool) error {
	places, err := s.places()
	if err != nil {
		return err
	}
	tables, small := needed(words)
	for i, place := range places {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if s.Progress != nil {
			s.Progress(i, len(places))
		}
		if err := s.one(ctx, l, place, tables, small); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			var damaged *damagedError
			if errors.As(err, &damaged) && len(places) > 1 {
				l.damaged = append(l.damaged, format.CleanText(filepath.Base(place)+": "+damaged.Error()))
				continue
			}
			return clierror.New(clierror.General, hintDamaged,
				fmt.Errorf("%s: %w", format.Clean(place), err))
		}
	}
	if len(l.damaged) > 0 && len(l.rows) == 0 {
		return clierror.New(clierror.General, hintDamaged,
			fmt.Errorf("all recordings in %s are damaged: %s", format.Clean(s.Path), l.damaged[0]))
	}
	return nil
}

func (s Local) places() ([]string, error) {
	place, err := filepath.Abs(s.Path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(place)
	if err != nil {
		return nil, clierror.New(clierror.Usage,
			"give a .isc folder, a .isc.zip, a folder of them, or s3://BUCKET/PREFIX", err)
	}
	if !info.IsDir() || strings.HasSuffix(place, archive.Extension) {
		return []string{place}, nil
	}
	if _, err := os.Stat(filepath.Join(place, "manifest.json")); err == nil {
		return []string{place}, nil
	}
	entries, err := os.ReadDir(place)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if n := e.Name(); !strings.HasPrefix(n, ".") &&
			(strings.HasSuffix(n, archive.Packed) || strings.HasSuffix(
				n, archive.Extension,
			) && e.Type()&fs.ModeType == fs.ModeDir) {
			out = append(out, filepath.Join(place, n))
		}
	}
	if len(out) == 0 {
		return nil, clierror.New(clierror.Usage,
			"inferscope record --pid N -o NAME.isc makes one; inferscoped --record-dir DIR keeps them",
			fmt.Errorf("there are no recordings in %s", format.Clean(s.Path)))
	}
	return out, nil
}

// one lays out one recording.
func (s Local) one(ctx context.Context, l *layout, place string, tables, small []string) error {
	name := strings.TrimSuffix(strings.TrimSuffix(filepath.Base(place), ".zip"), archive.Extension)
	in, err := archive.Inspect(place, false)
	if errors.Is(err, archive.ErrEmpty) {
		return nil // its writer is about to begin
	}
	if err != nil {
		return &damagedError{err}
	}
	if bad := slices.Concat(in.Missing, in.Damaged); len(bad) > 0 {
		return &damagedError{fmt.Errorf("missing or damaged: %s", format.Clean(bad[0]))}
	}
	packed := strings.HasSuffix(place, ".zip") // Unpack verifies it
	if !packed {
		if err := archive.Verify(place, in.Manifest, tables); err != nil {
			return &damagedError{err}
		}
	}
	row := fleet.RowOf(name, "", in.Manifest)
	made, err := s.small(ctx, place, row, small)
	if err != nil {
		return err
	}
	folder, err := l.next(row)
	if err != nil {
		return err
	}
	within := filepath.Join(folder, "r")
	if packed {
		if len(tables) > 0 {
			if err := archive.Unpack(place, within); err != nil {
				l.rows = l.rows[:len(l.rows)-1]
				return errors.Join(&damagedError{err}, os.RemoveAll(folder))
			}
		}
	} else if err := l.link(place, within); err != nil {
		return err
	}
	for _, t := range tables {
		if err := l.table(t, within, in.Manifest); err != nil {
			return err
		}
	}
	return l.small(folder, made)
}

// small makes small tables of a recording, those that are asked for.
func (s Local) small(ctx context.Context, place string, row fleet.Row, names []string) ([]fleet.SmallTable, error) {
	if len(names) == 0 {
		return nil, nil
	}
	rec, err := archive.ReadContext(ctx, place, archive.LimitsFor(s.MaxMemory))
	switch {
	case errors.Is(err, memlimit.ErrExceeded):
		return nil, err
	case err != nil:
		return nil, &damagedError{err}
	}
	made, err := Tables(rec, row)
	return slices.DeleteFunc(made, func(t fleet.SmallTable) bool { return !slices.Contains(names, t.Name) }), err
}

// Remote are the recordings in an object store.
type Remote struct {
	Store     fleet.UploadConfig // its bucket, prefix, endpoint and region
	Selection fleet.Selection    // without tables
}

func (s Remote) add(ctx context.Context, l *layout, words map[string]bool) error {
	s.Selection.Tables, s.Selection.Small = needed(words)
	s.Selection.MaxRecordings = maxRecordings
	found, err := fleet.Download(ctx, s.Store, s.Selection, l.dir)
	if err != nil {
		return err
	}
	for i := range found {
		m := &found[i]
		if _, err := l.next(fleet.RowOf(m.Recording, m.Node, m.Manifest)); err != nil {
			return err
		}
		for _, t := range s.Selection.Tables {
			files := len(m.Manifest.Tables[t].Files) > 0
			if files && !slices.ContainsFunc(m.Objects, func(o fleet.Object) bool { return path.Dir(o.Name) == t }) {
				l.without[t]++
				continue
			}
			if err := l.table(t, m.Folder, m.Manifest); err != nil {
				return fmt.Errorf("%s: %w", m.Recording, err)
			}
		}
		for _, t := range s.Selection.Small {
			file, has := m.SmallFiles[t]
			if !has {
				l.without[t]++
				continue
			}
			if err := l.file(t, file); err != nil {
				return err
			}
		}
	}
	return nil
}
