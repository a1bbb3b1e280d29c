package isc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/parquet-go/parquet-go/compress/zstd"

	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/record"
	"github.com/inferscope/inferscope/internal/version"
)

// StretchLength is the time that a file holds, in ns: 10 s. It is what a crash may lose.
const StretchLength = 10_000_000_000

// Writer writes a recording stretch by stretch. After an error of Append what was appended before is a valid
// recording. It is for one goroutine.
type Writer struct {
	dir      string
	manifest Manifest
	tables   []eventTable
	names    []nameTable
	written  map[string]int // rows of tables that grow
	merger   merger
	codec    *zstd.Codec
}

// Create makes the folder of a new recording. It refuses to write over anything (the error wraps os.ErrExist), unless
// force is set and what is there is a recording, or an empty folder.
func Create(dir string, force bool) (*Writer, error) {
	if err := makeWay(dir, force); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("make the folder of a recording: %w", err)
	}
	w := &Writer{
		dir: dir, tables: eventTables(), names: nameTables(), written: map[string]int{}, codec: newCodec(),
		manifest: Manifest{
			Format: format, Schema: Schema, State: Writing, Writer: version.String(), Stream: record.SchemaVersion,
			Stretches: []Stretch{}, Tables: map[string]Table{},
		},
	}
	if err := w.commit(); err != nil {
		return nil, err
	}
	return w, nil
}

// makeWay makes sure that there is nothing at dir but an empty folder. It removes a recording where force is set, and nothing else.
func makeWay(dir string, force bool) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, os.ErrNotExist), err == nil && len(entries) == 0:
		return nil
	case err != nil:
		return fmt.Errorf("%s is there and is no folder: %w", dir, errors.Join(os.ErrExist, err))
	case !force:
		return fmt.Errorf("%s is there: %w", dir, os.ErrExist)
	}
	src, err := openFolder(dir)
	if err == nil {
		_, err = readManifest(src)
		_ = src.Close()
	}
	if err != nil {
		return fmt.Errorf("%s is there and is no recording, so it is not removed: %w", dir, errors.Join(os.ErrExist, err))
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the old recording: %w", err)
	}
	return nil
}

// Write writes a recording into a new folder. clock may be nil.
func Write(dir string, rec *record.Recording, clock *Clock) error {
	w, err := Create(dir, false)
	if err != nil {
		return err
	}
	if err := w.all(rec); err != nil {
		return err
	}
	return w.Finish(clock)
}

// all writes one recording in parts of StretchLength.
func (w *Writer) all(rec *record.Recording) error {
	ties, open := positions(rec.Events), []numbered(nil)
	part := make([]numbered, 0, min(len(rec.Events), 1<<20))
	from := rec.Meta.From
	end := from + StretchLength
	for i := range rec.Events {
		e := numbered{&rec.Events[i], tieAt(ties, i)}
		if e.event.TS >= end && end < rec.Meta.To && len(part) > 0 {
			if err := w.stretch(&rec.Meta, Stretch{From: from, To: end}, part); err != nil {
				return err
			}
			part = part[:0]
		}
		for e.event.TS >= end && end < rec.Meta.To {
			from, end = end, end+StretchLength
		}
		if isOpen(e.event) {
			open = append(open, e)
		} else {
			part = append(part, e)
		}
	}
	return w.stretch(&rec.Meta, Stretch{From: from, To: rec.Meta.To}, append(part, open...))
}

// isOpen says whether an event tells how things stood at the end of a recording, and not what happened.
func isOpen(e *event.Event) bool { return e.Kind == event.OffCPU && e.Flags&event.Open != 0 }

// Append adds a stretch that follows on the one before, or overlaps it: what both hold is written once. The
// stretch has tables of its own; they become one with those before.
func (w *Writer) Append(rec *record.Recording) error {
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
	return w.stretch(&w.merger.meta, Stretch{From: from, To: rec.Meta.To}, rows)
}

// Finish says that the recording is whole. clock may be nil.
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
func (w *Writer) stretch(meta *record.Meta, s Stretch, rows []numbered) (err error) {
	if err := checkRows(rows); err != nil {
		return err
	}
	s.Number, s.Events = len(w.manifest.Stretches)+1, len(rows)
	next := w.manifest
	next.Tables = make(map[string]Table, len(w.manifest.Tables))
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

// commit puts the manifest into its place.
func (w *Writer) commit() error {
	p, err := writeTemp(w.dir, manifestName, func(out io.Writer) error {
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
