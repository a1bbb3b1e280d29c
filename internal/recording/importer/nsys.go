package importer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	_ "modernc.org/sqlite" // the driver: SQLite in Go, so that a hostile file meets no C code

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// nsys reads one database. Its tables are those that `nsys export --type sqlite` writes (Nsight Systems user guide,
// "SQLite Schema Reference"); a version that lacks a table or a column has less to say, and that is no error.
type nsys struct {
	*builder
	db      *sql.DB
	ctx     context.Context
	strings map[int64]string
	broken  map[int64]bool // samples whose stacks are cut off
	cpus    bool           // there are samples
	sched   bool           // there are switches
	osrt    int64          // calls of the operating system's libraries, which are not read
	wall    int64          // ns since 1970 of time 0
	comms   map[uint32]string
}

// readNsys reads a SQLite file of Nsight Systems. It writes nothing, not even a journal.
func readNsys(ctx context.Context, path string, limits Limits) (*recording.Recording, error) {
	whole, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(whole); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errors.New("it is no regular file")
	}
	// immutable: no lock and no log beside the file is looked at.
	u := url.URL{
		Scheme:   "file",
		Path:     whole,
		RawQuery: "mode=ro&immutable=1&_pragma=trusted_schema(0)&_pragma=cell_size_check(1)&_pragma=query_only(1)&_pragma=mmap_size(0)",
	}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1)
	n := &nsys{
		builder: newBuilder(limits, "Nsight Systems SQLite"), db: db, ctx: ctx,
		strings: map[int64]string{}, broken: map[int64]bool{}, comms: map[uint32]string{},
	}
	if err := n.read(); err != nil {
		return nil, err
	}
	for i := range n.meta.Processes {
		p := &n.meta.Processes[i]
		p.Cmdline = n.comms[p.PID]
		p.Comm = filepath.Base(p.Cmdline)
		if p.Cmdline == "" {
			p.Comm = n.threads[key(p.PID, p.PID)]
		}
	}
	return n.finish(n.wallOf, n.sources())
}

// read reads the tables, those that name things first.
func (n *nsys) read() error {
	if ok, err := n.has("StringIds"); err != nil {
		return fmt.Errorf("read its schema: %w", err)
	} else if !ok {
		return errors.New("this is a SQLite file, but it has no table StringIds: it is not of nsys export")
	}
	for _, step := range []struct {
		table string
		read  func() error
	}{
		{"StringIds", n.readStrings},
		{"TARGET_INFO_SESSION_START_TIME", n.readStart},
		{"ThreadNames", n.readThreads},
		{"PROCESSES", n.readProcesses},
		{"CUPTI_ACTIVITY_KIND_RUNTIME", n.readCalls},
		{"CUPTI_ACTIVITY_KIND_KERNEL", n.readKernels},
		{"CUPTI_ACTIVITY_KIND_MEMCPY", n.readCopies},
		{"CUPTI_ACTIVITY_KIND_MEMSET", n.readSets},
		{"CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", n.readSyncs},
		{"NVTX_EVENTS", n.readRanges},
		{"SCHED_EVENTS", n.readSwitches},
		{"COMPOSITE_EVENTS", n.readSamples},
		{"OSRT_API", n.countOSRT},
		{"TARGET_INFO_GPU", n.readDevices},
	} {
		ok, err := n.has(step.table)
		if err == nil && ok {
			err = step.read()
		}
		if err != nil {
			return fmt.Errorf("table %s: %w", step.table, err)
		}
	}
	return nil
}

// has reports whether there is a table of a name: a view of it could compute for ever.
func (n *nsys) has(table string) (bool, error) {
	var kind string
	err := n.db.QueryRowContext(
		n.ctx,
		"SELECT type FROM sqlite_schema WHERE name = ? AND sql NOT LIKE '%GENERATED%' AND sql NOT LIKE 'CREATE "+
			"VIRTUAL%'",
		table,
	).
		Scan(&kind)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return kind == "table", err
}

// columns returns the columns that a table has.
func (n *nsys) columns(table string) (map[string]bool, error) {
	rows, err := n.db.QueryContext(n.ctx, "SELECT name FROM pragma_table_info(?)", table)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	out := map[string]bool{}
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		out[name] = true
	}
	return out, rows.Err()
}

// each reads columns of a table, in the order of the file; a column that the table lacks is 0 in each row, as is
// a value that is no number.
func (n *nsys) each(table string, columns []string, visit func(v []int64) error) error {
	query, err := n.query(table, columns)
	if err != nil {
		return err
	}
	rows, err := n.db.QueryContext(n.ctx, query)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	values, into := make([]int64, len(columns)), make([]any, len(columns))
	for i := range values {
		into[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		if err := visit(values); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (n *nsys) query(table string, columns []string) (string, error) {
	has, err := n.columns(table)
	if err != nil {
		return "", err
	}
	var list []string
	for _, c := range columns {
		switch {
		case !has[c]:
			list = append(list, "0")
		case c == "text":
			list = append(list, "rowid")
		default:
			list = append(list, `CASE WHEN typeof("`+c+`") = 'integer' THEN "`+c+`" ELSE 0 END`)
		}
	}
	return "SELECT " + strings.Join(list, ", ") + ` FROM "` + table + `"`, nil
}

// maxText is how long a text of the database may be, in bytes.
const maxText = 64 << 10

func (n *nsys) readStrings() error {
	return n.texts("StringIds", "id", "value", func(id int64, s string) { n.strings[id] = s })
}

// texts calls f with each text of a table and the number that it goes by.
func (n *nsys) texts(table, id, text string, f func(int64, string)) error {
	rows, err := n.db.QueryContext(
		n.ctx,
		fmt.Sprintf(
			"SELECT %[2]s, substr(CAST(%[3]s AS TEXT), 1, ?) FROM %[1]s WHERE typeof(%[2]s) = 'integer' AND %[3]s IS NOT "+
				"NULL",
			table, id, text,
		),
		maxText,
	)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var number int64
		var s string
		if err := rows.Scan(&number, &s); err != nil {
			return err
		}
		if err := n.name(s); err != nil {
			return err
		}
		f(number, s)
	}
	return rows.Err()
}

// wallOf returns ns since 1970; 0 where the file does not say when it began.
func (n *nsys) wallOf(ns uint64) int64 {
	if n.wall == 0 {
		return 0
	}
	return n.wall + int64(ns)
}

func (n *nsys) readStart() error {
	return n.each("TARGET_INFO_SESSION_START_TIME", []string{"utcEpochNs"}, func(v []int64) error {
		n.wall = v[0]
		return nil
	})
}

// process and thread of a globalTid: Nsight Systems user guide, "Common SQLite Examples".
func process(global int64) uint32 { return uint32(uint64(global) >> 24 & 0xffffff) }
func thread(global int64) uint32  { return uint32(global & 0xffffff) }

func (n *nsys) readThreads() error {
	return n.each("ThreadNames", []string{"nameId", "globalTid"}, func(v []int64) error {
		if name := n.strings[v[0]]; name != "" {
			n.threads[key(process(v[1]), thread(v[1]))] = name
		}
		return nil
	})
}

func (n *nsys) readProcesses() error {
	has, err := n.columns("PROCESSES")
	if err != nil || !has["name"] || !has["globalPid"] {
		return err
	}
	return n.texts("PROCESSES", "globalPid", "name", func(id int64, name string) { n.comms[process(id)] = name })
}

// span checks the times of a row, ns; negative ones are before the session, and left out.
func (n *nsys) span(start, end int64) (ts, dur uint64, ok bool) {
	if start < 0 || end < start {
		n.skip("rows whose times are before the session, or end before they begin")
		return 0, 0, false
	}
	return uint64(start), uint64(end - start), true
}

func (n *nsys) readCalls() error {
	names := map[int64]uint16{}
	return n.each(
		"CUPTI_ACTIVITY_KIND_RUNTIME",
		[]string{"start", "end", "globalTid", "correlationId", "nameId", "returnValue"},
		func(v []int64) error {
			ts, dur, ok := n.span(v[0], v[1])
			if !ok {
				return nil
			}
			fn, known := names[v[4]]
			if !known {
				var err error
				name := callName(n.strings[v[4]])
				if fn, ok, err = n.function(name, libraryOf(name)); err != nil || !ok {
					return err
				}
				names[v[4]] = fn
			}
			n.process(process(v[2]))
			return n.worked(event.Event{
				TS: ts, Dur: dur, PID: process(v[2]), TID: thread(v[2]), Func: fn, Kind: event.Call,
				Flags: event.Timed | event.Fault | event.Correlated, Ret: int32(uint32(v[3])),
			})
		},
	)
}

// callName cuts off what CUPTI adds: cudaLaunchKernel_v7000.
func callName(name string) string {
	if !strings.HasPrefix(name, "cuda") {
		return name
	}
	if i := strings.LastIndex(name, "_v"); i > 0 && len(name)-i >= 5 && strings.Trim(name[i+2:], "0123456789") == "" {
		return name[:i]
	}
	return name
}

func libraryOf(name string) string {
	if strings.HasPrefix(name, "cuda") {
		return "runtime"
	}
	return "driver"
}

// countOSRT counts what nsys calls OS runtime: calls of libc and libpthread that took longer than its threshold.
func (n *nsys) countOSRT() error {
	return n.db.QueryRowContext(n.ctx, "SELECT count(*) FROM OSRT_API").Scan(&n.osrt)
}

func (n *nsys) sources() []recording.Source {
	out := []recording.Source{
		{
			Name:   "cuda",
			State:  "running",
			Detail: "Nsight Systems has no arguments of calls; a call that failed is not marked",
		},
		{
			Name:   "gpu",
			State:  "running",
			Detail: "as Nsight Systems recorded it, from its first to its last row; what it lost is not known",
		},
	}
	if !n.hasWork {
		out = []recording.Source{
			{Name: "cuda", State: "unavailable", Detail: "the file has no CUDA rows: record with nsys profile -t cuda"},
		}
	}
	samples := recording.Source{
		Name:   "samples",
		State:  "running",
		Detail: "Nsight Systems' samples of threads, without Python frames",
	}
	if !n.cpus {
		samples = recording.Source{
			Name:     "samples",
			State:    "unavailable",
			Optional: true,
			Detail:   "the file has none: record with nsys profile -s process-tree",
		}
	}
	sched := recording.Source{
		Name:   "scheduling",
		State:  "running",
		Detail: "Nsight Systems' context switches: why a thread was off its CPU, and who woke it, is not in them",
	}
	if !n.sched {
		sched = recording.Source{
			Name:     "scheduling",
			State:    "unavailable",
			Optional: true,
			Detail: "the file has no context switches, so that waits cannot be told from work: record with nsys " +
				"profile --cpuctxsw=process-tree",
		}
	}
	if n.osrt > 0 {
		sched.Detail += fmt.Sprintf("; its %d rows of the operating system's calls (OSRT_API) are not read", n.osrt)
	}
	return append(out, samples, sched)
}
