package archive

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"github.com/parquet-go/parquet-go/compress/zstd"

	"github.com/inferscope/inferscope/internal/format/version"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/outfile"
)

// FileInterval is the time that a file holds, in ns: 10 s. It is what a crash may lose.
const FileInterval = 10_000_000_000

// Writer writes a recording stretch by stretch. After an error of Append what was appended before is a valid
// recording. It is for one goroutine.
type Writer struct {
	folder   *outfile.Folder
	manifest Manifest
	tables   []eventTable
	names    []nameTable
	written  map[string]int // rows of tables that grow
	merger   merger
	codec    *zstd.Codec
}

// Create makes the folder of a new recording. It refuses to write over anything (the error wraps os.ErrExist), unless
// force is set and what is there is a recording, or an empty folder.
func Create(dir string, force bool) (*Writer, error) { return createAs(dir, force, nil) }

// createAs is Create with the rights of a user; nil are those of this process.
func createAs(dir string, force bool, as *syscall.Credential) (*Writer, error) {
	folder, err := makeFolder(dir, force, as)
	if err != nil {
		return nil, err
	}
	w := &Writer{
		folder: folder, tables: eventTables(), names: nameTables(), written: map[string]int{}, codec: newCodec(),
		manifest: Manifest{
			Format: format, Schema: schemaVersion, State: Writing, Writer: version.String(),
			Stream:    recording.SchemaVersion,
			Stretches: []stretch{}, Tables: map[string]tableInfo{},
		},
	}
	if err := w.commit(); err != nil {
		return nil, err
	}
	return w, nil
}

// makeFolder makes a new folder and holds it, so that nobody who exchanges it meanwhile can lead what is written
// elsewhere.
func makeFolder(dir string, force bool, as *syscall.Credential) (*outfile.Folder, error) {
	parent, name, err := outfile.OpenParent(dir, as, true)
	if err != nil {
		return nil, fmt.Errorf("make the folder of a recording: %w", err)
	}
	defer func() { _ = parent.Close() }()
	if err := makeWay(parent, name, dir, force); err != nil {
		return nil, err
	}
	if err := parent.Mkdir(name); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("make the folder of a recording: %w", err)
	}
	folder, err := parent.Folder(name)
	if err != nil {
		return nil, fmt.Errorf("make the folder of a recording: %w", err)
	}
	return folder, nil
}

// makeWay makes sure that there is nothing called name but an empty folder. It removes a recording where force is set,
// and nothing else.
func makeWay(parent *outfile.Dir, name, dir string, force bool) error {
	there, err := parent.Exists(name)
	if err != nil || !there {
		return err
	}
	old, err := parent.Folder(name)
	if err != nil {
		return fmt.Errorf("%s is there and is no folder: %w", dir, errors.Join(os.ErrExist, err))
	}
	defer func() { _ = old.Close() }()
	entries, err := fs.ReadDir(old.Root.FS(), ".")
	switch {
	case err == nil && len(entries) == 0:
		return nil
	case err != nil:
		return fmt.Errorf("%s is there and cannot be read: %w", dir, errors.Join(os.ErrExist, err))
	case !force:
		return fmt.Errorf("%s is there: %w", dir, os.ErrExist)
	}
	if _, err := readManifest(folder{old.Root}); err != nil {
		return fmt.Errorf("%s is there and is no recording, so it is not removed: %w",
			dir, errors.Join(os.ErrExist, err))
	}
	if err := parent.RemoveAll(name); err != nil {
		return fmt.Errorf("remove the old recording: %w", err)
	}
	return nil
}

// Write writes a recording into a new folder. clock may be nil.
func Write(dir string, rec *recording.Recording, clock *Clock) error {
	return WriteAs(dir, rec, clock, nil)
}

// WriteAs is Write with the rights of a user; nil are those of this process.
func WriteAs(dir string, rec *recording.Recording, clock *Clock, as *syscall.Credential) error {
	w, err := createAs(dir, false, as)
	if err != nil {
		return err
	}
	if err := w.all(rec); err != nil {
		return err
	}
	return w.Finish(clock)
}

// all writes one recording in parts of FileInterval.
func (w *Writer) all(rec *recording.Recording) error {
	ties, open := positions(rec.Events), []numbered(nil)
	part := make([]numbered, 0, min(len(rec.Events), 1<<20))
	from := rec.Meta.From
	end := from + FileInterval
	for i := range rec.Events {
		e := numbered{&rec.Events[i], tieAt(ties, i)}
		if e.event.TS >= end && end < rec.Meta.To && len(part) > 0 {
			if err := w.stretch(&rec.Meta, stretch{From: from, To: end}, part); err != nil {
				return err
			}
			part = part[:0]
		}
		for e.event.TS >= end && end < rec.Meta.To {
			from, end = end, end+FileInterval
		}
		if isOpen(e.event) {
			open = append(open, e)
		} else {
			part = append(part, e)
		}
	}
	return w.stretch(&rec.Meta, stretch{From: from, To: rec.Meta.To}, append(part, open...))
}

// isOpen reports whether an event tells how things stood at the end of a recording, and not what happened.
func isOpen(e *event.Event) bool {
	return (e.Kind == event.OffCPU || e.Kind == event.Allocation) && e.Flags&event.Open != 0
}

// Append adds a stretch that follows on the one before, or overlaps it: what both hold is written once. The
// stretch has tables of its own; they become one with those before.
func (w *Writer) Append(rec *recording.Recording) error {
	if err := checkEvents(rec.Events); err != nil {
		return err
	}
	from := max(rec.Meta.From, w.manifest.To)
	events := w.merger.add(rec)
	rows := make([]numbered, len(events))
	ties := positions(events)
	for i := range events {
		rows[i] = numbered{&events[i], tieAt(ties, i)}
	}
	return w.stretch(&w.merger.meta, stretch{From: from, To: rec.Meta.To}, rows)
}

// Finish marks the recording as complete. clock may be nil.
func (w *Writer) Finish(clock *Clock) error {
	w.manifest.State, w.manifest.Clock = Complete, clock
	return w.commit()
}

// Manifest returns what has been written so far.
func (w *Writer) Manifest() *Manifest { return &w.manifest }

// numbered is an event and its position among those of the same ns.
type numbered struct {
	event *event.Event
	tie   uint32
}

// positions returns the position of each event among those of equal TS; nil where no two are equal.
func positions(events []event.Event) []uint32 {
	var ties []uint32
	for i := 1; i < len(events); i++ {
		if events[i].TS != events[i-1].TS {
			continue
		}
		if ties == nil {
			ties = make([]uint32, len(events))
		}
		ties[i] = ties[i-1] + 1
	}
	return ties
}

func tieAt(ties []uint32, i int) uint32 {
	if ties == nil {
		return 0
	}
	return ties[i]
}

// stretch writes the files of a stretch, then the manifest that makes them count.
func (w *Writer) stretch(meta *recording.Meta, s stretch, rows []numbered) (err error) {
	if err := checkRows(rows); err != nil {
		return err
	}
	s.Number, s.Events = len(w.manifest.Stretches)+1, len(rows)
	next := w.manifest
	next.Tables = make(map[string]tableInfo, len(w.manifest.Tables))
	for name, t := range w.manifest.Tables {
		next.Tables[name] = t
	}
	next.Stretches = append(slices.Clip(next.Stretches), s)
	next.describe(meta)
	b := &building{w: w, manifest: &next, number: s.Number}
	defer func() {
		if err != nil {
			b.discard()
		}
	}()
	if err := b.events(newRouter(w.tables, meta.Functions), rows); err != nil {
		return err
	}
	if err := b.nameAll(meta); err != nil {
		return err
	}
	if err := b.place(); err != nil {
		return err
	}
	old := w.manifest
	w.manifest = next
	if err := w.commit(); err != nil {
		w.manifest = old
		return err
	}
	b.keep()
	return nil
}

// commit renames the manifest to its final name.
func (w *Writer) commit() error {
	p, err := writeTemp(w.folder, manifestName, func(out io.Writer) error {
		e := json.NewEncoder(out)
		e.SetEscapeHTML(false)
		e.SetIndent("", " ")
		return e.Encode(&w.manifest)
	})
	if err != nil {
		return err
	}
	return p.settle()
}
