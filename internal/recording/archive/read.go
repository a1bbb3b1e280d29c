package archive

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/columns"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/memlimit"
)

// Limits bound what Read takes, which may come from anybody.
type Limits struct {
	Events int   // each takes 64 bytes in memory
	Names  int   // rows of all tables that name things
	Bytes  int64 // of one file, which is read whole
	Text   int64 // bytes of all names together
}

// DefaultLimits returns 64 Mi events (4 GiB of memory) and 4 Mi names.
// 1 GiB for one file and for the text of all names.
func DefaultLimits() Limits {
	return Limits{Events: 64 << 20, Names: 4 << 20, Bytes: maxFileBytes, Text: 1 << 30}
}

// LimitsFor returns limits that keep reading within some bytes of memory: an event takes three times its size while
// events are put into their order.
func LimitsFor(memory int64) Limits {
	l := DefaultLimits()
	l.Events = int(min(int64(l.Events), memory/(3*event.Size)))
	l.Names = int(min(int64(l.Names), memory/1024))
	l.Bytes, l.Text = min(l.Bytes, memory/4), min(l.Text, memory/4)
	return l
}

// Read reads the recording in a folder or in a packed one, whole, and verifies every file that it uses.
// What the manifest does not list is no part of it.
func Read(place string, limits Limits) (*recording.Recording, error) {
	return ReadContext(context.Background(), place, limits)
}

// ReadContext is Read that ends with a context.
func ReadContext(ctx context.Context, place string, limits Limits) (*recording.Recording, error) {
	s, err := openStore(place)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	rec, err := read(ctx, s, limits)
	if err != nil {
		return nil, fmt.Errorf("read recording %s: %w", place, err)
	}
	return rec, nil
}

func read(ctx context.Context, s store, limits Limits) (*recording.Recording, error) {
	m, err := readManifest(s)
	if err != nil {
		return nil, err
	}
	if len(m.Stretches) == 0 {
		return nil, ErrEmpty
	}
	r := &reader{ctx: ctx, store: s, manifest: m, limits: limits}
	rec := &recording.Recording{Meta: m.meta()}
	if err := r.names(&rec.Meta); err != nil {
		return nil, err
	}
	if err := r.bound(); err != nil {
		return nil, err
	}
	rec.Events, err = r.events()
	if err != nil {
		return nil, err
	}
	return rec, nil
}

type reader struct {
	ctx      context.Context
	store    store
	manifest *Manifest
	limits   Limits
}

// bound holds the rows that the manifest claims against the limit, before memory is taken for them.
func (r *reader) bound() error {
	total := 0
	for _, t := range eventTables() {
		table := r.manifest.Tables[t.name]
		if total += table.Rows(); total > r.limits.Events {
			return fmt.Errorf("it holds more than %d events, the limit: %w", r.limits.Events, memlimit.ErrExceeded)
		}
	}
	return nil
}

// open reads and verifies a file and holds it against what the manifest says.
func (r *reader) open(f *parquetFile) (*columns.File, error) {
	if err := r.ctx.Err(); err != nil {
		return nil, err
	}
	if f.Bytes > r.limits.Bytes {
		return nil, fmt.Errorf("%s has %d bytes, over the limit of %d for one file: %w",
			f.Name, f.Bytes, r.limits.Bytes, memlimit.ErrExceeded)
	}
	data, err := readFile(r.store, f)
	if err != nil {
		return nil, err
	}
	limits := columns.DefaultLimits()
	limits.Text = r.limits.Text
	file, err := columns.Open(data, limits)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name, err)
	}
	if file.Rows != f.Rows {
		return nil, fmt.Errorf("%s has %d rows instead of %d", f.Name, file.Rows, f.Rows)
	}
	return file, nil
}

// names fills the tables of a Meta.
func (r *reader) names(meta *recording.Meta) error {
	total := 0
	for _, t := range nameTables() {
		table, there := r.manifest.Tables[t.name]
		if !there && t.name == "other_threads" {
			table, there = r.manifest.Tables["strangers"] // its name in recordings of releases before this one
		}
		if !there {
			continue
		}
		if t.gpu && meta.GPU == nil {
			return fmt.Errorf("it has a table %s although it says that no agent was asked for", t.name)
		}
		if total += table.Rows(); total > r.limits.Names {
			return fmt.Errorf("its tables of names have more than %d rows, the limit: %w",
				r.limits.Names, memlimit.ErrExceeded)
		}
		if err := r.table(&t, &table, meta); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) table(t *nameTable, table *tableInfo, meta *recording.Meta) error {
	all := reflect.MakeSlice(reflect.SliceOf(t.row), 0, min(table.Rows(), 1<<12))
	for i := range table.Files {
		file, err := r.open(&table.Files[i])
		if err != nil {
			return err
		}
		rows, err := decodeRows(file, t.row)
		if err != nil {
			return fmt.Errorf("%s: %w", table.Files[i].Name, err)
		}
		if r.limits.Text -= file.Text(); r.limits.Text < 0 {
			return fmt.Errorf("its names are longer than the limit together: %w", memlimit.ErrExceeded)
		}
		all = reflect.AppendSlice(all, rows)
	}
	t.take(meta, all)
	return nil
}

// run is events in order, with the position of each among those of the same ns.
type run struct {
	events []event.Event
	ties   []uint32 // nil: all 0
}

func (r *run) tie(i int) uint32 { return tieAt(r.ties, i) }

// before reports whether event i of r comes before event j of o.
func (r *run) before(i int, o *run, j int) bool {
	a, b := r.events[i].TS, o.events[j].TS
	return a < b || a == b && r.tie(i) < o.tie(j)
}

// events reads all tables of events and puts them into their order.
func (r *reader) events() ([]event.Event, error) {
	var all run
	for _, stretch := range r.manifest.byNumber() {
		runs := make([]run, 0, len(stretch))
		for _, f := range stretch {
			one, err := r.run(&f)
			if err != nil {
				return nil, err
			}
			runs = append(runs, one)
		}
		all = follow(all, merged(runs))
	}
	return slices.Clip(all.events), nil
}

// tableFile is a file and the table that it belongs to.
type tableFile struct {
	file  *parquetFile
	table eventTable
}

// byNumber returns the files of events by stretch, in the order of their numbers. States that were open at the end
// come last, because they began in any stretch.
func (m *Manifest) byNumber() [][]tableFile {
	at := map[string][]tableFile{}
	var order []string
	var open []tableFile
	for _, t := range eventTables() {
		table := m.Tables[t.name]
		for i := range table.Files {
			f := tableFile{&table.Files[i], t}
			if t.latest {
				open = append(open, f)
				continue
			}
			number := f.file.Name[len(t.name):]
			if _, there := at[number]; !there {
				order = append(order, number)
			}
			at[number] = append(at[number], f)
		}
	}
	slices.Sort(order)
	out := make([][]tableFile, 0, len(order)+1)
	for _, number := range order {
		out = append(out, at[number])
	}
	if len(open) > 0 {
		out = append(out, open)
	}
	return out
}

// run reads one file of events.
func (r *reader) run(f *tableFile) (run, error) {
	file, err := r.open(f.file)
	if err != nil {
		return run{}, err
	}
	out := run{events: make([]event.Event, file.Rows)}
	for i := range out.events {
		out.events[i].Kind = f.table.kind
	}
	for i := range f.table.fields {
		if err := r.ctx.Err(); err != nil {
			return run{}, err
		}
		if err := decodeField(file, &f.table.fields[i], out.events); err != nil {
			return run{}, fmt.Errorf("%s: %w", f.file.Name, err)
		}
	}
	if err := out.readTies(file); err != nil {
		return run{}, fmt.Errorf("%s: %w", f.file.Name, err)
	}
	if err := checkEvents(out.events); err != nil {
		return run{}, fmt.Errorf("%s: %w", f.file.Name, err)
	}
	return out.sorted(), nil
}

// decodeField puts a column into its bits. Events are new: the bits are 0.
func decodeField(file *columns.File, f *field, events []event.Event) error {
	mask := f.mask()
	return file.Ints(f.name, func(at int, values []uint64) error {
		part := events[at : at+len(values)]
		switch f.word {
		case wordTS:
			for i, v := range values {
				part[i].TS = v
			}
		case wordDur:
			for i, v := range values {
				part[i].Dur = v
			}
		case wordIDs, wordHead:
			for i, v := range values {
				f.set(&part[i], v)
			}
		default:
			arg := f.word - wordArg0
			for i, v := range values {
				part[i].Args[arg] |= v & mask << f.shift
			}
		}
		return nil
	})
}

func (r *run) readTies(file *columns.File) error {
	return file.Ints(tieColumn().name, func(at int, values []uint64) error {
		for i, v := range values {
			if v == 0 {
				continue
			}
			if r.ties == nil {
				r.ties = make([]uint32, len(r.events))
			}
			r.ties[at+i] = uint32(min(v, math.MaxUint32))
		}
		return nil
	})
}
