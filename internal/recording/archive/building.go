package archive

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"path"
	"reflect"

	"github.com/parquet-go/parquet-go"
	"golang.org/x/sync/errgroup"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// building is a stretch on its way to the disk.
type building struct {
	w        *Writer
	manifest *Manifest // with the stretch
	number   int
	files    []pending
	replaced []string       // names of files that the new manifest does not list
	grown    map[string]int // rows of tables that grow
}

func (b *building) name(table string) string { return fmt.Sprintf("%s/%06d.parquet", table, b.number) }

// events writes the tables of events, some at a time: encoding is most of the work.
func (b *building) events(r *router, rows []numbered) error {
	parts := make([][]numbered, len(b.w.tables))
	for _, row := range rows {
		t := r.table(row.event)
		parts[t] = append(parts[t], row)
	}
	files := make([]pending, len(parts))
	var group errgroup.Group
	group.SetLimit(encoders)
	for i := range parts {
		if len(parts[i]) > 0 {
			group.Go(func() (err error) {
				files[i], err = b.w.encodeEvents(&b.w.tables[i], b.name(b.w.tables[i].name), parts[i])
				return err
			})
		}
	}
	err := group.Wait()
	for i, f := range files {
		if f.SHA256 != "" {
			b.files = append(b.files, f)
			b.list(b.w.tables[i].name, f.parquetFile, b.w.tables[i].latest)
		}
	}
	b.closeStates(parts)
	return err
}

// closeStates takes the states that went on at the end of the stretch before off the list, where this one ends with
// none.
func (b *building) closeStates(parts [][]numbered) {
	for i, t := range b.w.tables {
		if old, there := b.manifest.Tables[t.name]; t.latest && there && len(parts[i]) == 0 {
			b.drop(old)
			delete(b.manifest.Tables, t.name)
		}
	}
}

func (w *Writer) encodeEvents(t *eventTable, name string, rows []numbered) (pending, error) {
	columns := make([]column, 0, len(t.fields)+1)
	for _, f := range t.fields {
		columns = append(columns, f.column)
	}
	columns = append(columns, tieColumn())
	p, err := writeTemp(w.folder, name, func(out io.Writer) error {
		return encode(out, w.codec, t.name, columns, len(rows), func(c, from int, out []parquet.Value) {
			if c == len(t.fields) {
				for i := range out {
					out[i] = tieColumn().kind.value(uint64(rows[from+i].tie))
				}
				return
			}
			f := &t.fields[c]
			for i := range out {
				out[i] = f.kind.value(f.get(rows[from+i].event))
			}
		})
	})
	p.Rows = len(rows)
	return p, err
}

// nameAll writes the tables that name things: of those that grow the new rows, the others whole where they changed.
func (b *building) nameAll(meta *recording.Meta) error {
	b.grown = map[string]int{}
	for i := range b.w.names {
		t := &b.w.names[i]
		from := b.w.written[t.name]
		rows, there := t.rows(meta, from)
		if !there {
			continue
		}
		if _, listed := b.manifest.Tables[t.name]; !listed {
			b.manifest.Tables[t.name] = tableInfo{Files: []parquetFile{}}
		}
		if t.grows {
			b.grown[t.name] = from + rows.Len()
		}
		if err := b.nameOne(t, rows); err != nil {
			return err
		}
	}
	return nil
}

func (b *building) nameOne(t *nameTable, rows reflect.Value) error {
	if rows.Len() == 0 {
		if !t.grows {
			b.drop(b.manifest.Tables[t.name])
			b.manifest.Tables[t.name] = tableInfo{Files: []parquetFile{}}
		}
		return nil
	}
	var text bytes.Buffer
	if err := encodeRows(&text, b.w.codec, t.name, rows); err != nil {
		return err
	}
	if !t.grows && b.unchanged(t.name, text.Bytes()) {
		return nil
	}
	p, err := writeTemp(b.w.folder, b.name(t.name), func(out io.Writer) error {
		_, err := out.Write(text.Bytes())
		return err
	})
	if err != nil {
		return err
	}
	p.Rows = rows.Len()
	b.files = append(b.files, p)
	b.list(t.name, p.parquetFile, !t.grows)
	return nil
}

// unchanged reports whether a table is on the disk as it would be written now.
func (b *building) unchanged(table string, text []byte) bool {
	files := b.manifest.Tables[table].Files
	return len(files) == 1 && files[0].SHA256 == sumOf(text)
}

// list adds a file to the manifest, instead of those before where it replaces them.
func (b *building) list(table string, f parquetFile, replace bool) {
	t := b.manifest.Tables[table]
	if replace {
		b.drop(t)
		t.Files = nil
	}
	b.manifest.Tables[table] = tableInfo{Files: append(t.Files[:len(t.Files):len(t.Files)], f)}
}

func (b *building) drop(t tableInfo) {
	for _, f := range t.Files {
		b.replaced = append(b.replaced, f.Name)
	}
}

// place makes sure that the files are on the disk, and renames them to their names.
func (b *building) place() error {
	var files, dirs []string
	for i := range b.files {
		files = append(files, b.files[i].Name+tempSuffix)
		dirs = append(dirs, path.Dir(b.files[i].Name))
	}
	if err := syncAll(b.w.folder, files); err != nil {
		return err
	}
	for i := range b.files {
		if err := b.files[i].place(); err != nil {
			return err
		}
	}
	return syncAll(b.w.folder, append(dirs, "."))
}

// keep does what follows once the manifest counts: it removes what was replaced.
func (b *building) keep() {
	for table, n := range b.grown {
		b.w.written[table] = n
	}
	for _, name := range b.replaced {
		_ = b.w.folder.Remove(name)
	}
}

// discard removes the files of a stretch that does not count.
func (b *building) discard() {
	for i := range b.files {
		b.files[i].discard()
	}
}

func checkRows(rows []numbered) error {
	if len(rows) > maxFileRows {
		return fmt.Errorf("a stretch of %d events is over the limit of %d: write shorter ones", len(rows), maxFileRows)
	}
	for _, r := range rows {
		if err := checkEvent(r.event); err != nil {
			return err
		}
	}
	return nil
}

func checkEvents(events []event.Event) error {
	for i := range events {
		if err := checkEvent(&events[i]); err != nil {
			return err
		}
	}
	return nil
}

// checkEvent refuses times that no clock can show, as recording.ReadStream does.
func checkEvent(e *event.Event) error {
	if e.Dur > math.MaxInt64 || e.TS > math.MaxInt64-e.Dur {
		return fmt.Errorf("an event begins at %d ns and takes %d ns, which no clock can show", e.TS, e.Dur)
	}
	return nil
}
