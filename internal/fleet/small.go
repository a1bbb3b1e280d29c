package fleet

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/parquet-go/parquet-go"

	"github.com/inferscope/inferscope/internal/recording/archive"
)

// Row is the row of a recording in the table recordings. Times are ns; those of tables of events are CLOCK_MONOTONIC,
// and wall_offset_ns makes wall time of them.
type Row struct {
	Recording string `parquet:"recording,zstd"`
	Node      string `parquet:"node_name,zstd"`
	PID       int64  `parquet:"pid"`
	Comm      string `parquet:"comm,zstd"`
	From      int64  `parquet:"from_ns"` // since 1970
	To        int64  `parquet:"to_ns"`
	Offset    int64  `parquet:"wall_offset_ns"`
	Events    int64  `parquet:"events"`
	Lost      int64  `parquet:"lost"` // sum of all losses
	Triggered bool   `parquet:"triggered"`
	Kernel    string `parquet:"kernel,zstd"`
	CPUs      int64  `parquet:"cpus"`
	Version   string `parquet:"recorded_by,zstd"`
}

// RowOf returns the row of the recording called base, without the extension, that a machine called node made.
func RowOf(base, node string, m *archive.Manifest) Row {
	r := Row{
		Recording: base, Node: node, PID: int64(m.Target), From: m.WallFrom, To: m.WallFrom + int64(m.To-m.From),
		Offset: m.WallFrom - int64(m.From), Events: int64(m.Events()), Triggered: isTriggered(base),
		Kernel: m.Host.Kernel, CPUs: int64(m.Host.CPUs), Version: m.Recorder,
	}
	// Only recordings of a daemon are called TIME-PID-COMM or TIME-PID-COMM-flight-WHY.
	if parts := strings.SplitN(base, "-", 3); len(parts) == 3 && parts[1] == strconv.FormatUint(uint64(m.Target), 10) {
		r.Comm = parts[2]
		if at := strings.LastIndex(r.Comm, triggeredMark); at >= 0 {
			r.Comm = r.Comm[:at]
		}
	}
	for _, l := range m.Losses {
		r.Lost += int64(l.Count)
	}
	return r
}

// FindingRow is a row of table findings: what a report of the recording says first.
type FindingRow struct {
	Recording  string  `parquet:"recording,zstd"`
	PID        int64   `parquet:"pid"`
	From       int64   `parquet:"from_ns"` // since 1970
	Verdict    string  `parquet:"verdict,zstd"`
	Cause      string  `parquet:"cause,zstd"`
	Title      string  `parquet:"title,zstd"`
	Cost       int64   `parquet:"cost_ns"`
	Share      float64 `parquet:"share"`
	Confidence float64 `parquet:"confidence"`
	Place      string  `parquet:"place,zstd"`
}

// PartRow is a row of table gpu_time: where the time of a GPU went. The parts of a recording and a device sum up to
// watched_ns.
type PartRow struct {
	Recording string `parquet:"recording,zstd"`
	PID       int64  `parquet:"pid"`
	From      int64  `parquet:"from_ns"` // since 1970
	Device    int64  `parquet:"device"`  // as the process counts; -1: the target used no GPU, and the time is its main thread's
	Name      string `parquet:"device_name,zstd"`
	Part      string `parquet:"part,zstd"` // compute, h2d, ..., or the key of a cause
	Busy      bool   `parquet:"busy"`      // the GPU ran something
	Time      int64  `parquet:"time_ns"`
	Watched   int64  `parquet:"watched_ns"`
}

// ThreadRow is a row of table thread_times: what a thread of the target did, as far as scheduling was recorded.
type ThreadRow struct {
	Recording   string `parquet:"recording,zstd"`
	PID         int64  `parquet:"pid"`
	TID         int64  `parquet:"tid"`
	From        int64  `parquet:"from_ns"` // since 1970
	Thread      string `parquet:"thread,zstd"`
	Running     int64  `parquet:"running_ns"`
	Runnable    int64  `parquet:"runnable_ns"` // waited for a CPU
	Blocked     int64  `parquet:"blocked_ns"`
	Voluntary   int64  `parquet:"voluntary_switches"`
	Involuntary int64  `parquet:"involuntary_switches"`
	Migrations  int64  `parquet:"migrations"`
}

// SetTables gives the worker what makes more small tables of a recording.
func (w *Worker) SetTables(tables func(ctx context.Context, folder string, r Row) ([]SmallTable, error)) {
	if w.upload != nil {
		w.upload.tables = tables
	}
}

func recordingsTable(r Row) (SmallTable, error) { return Table("recordings", []Row{r}) }

// Table writes rows as a Parquet file.
func Table[T any](name string, rows []T) (SmallTable, error) {
	var out bytes.Buffer
	w := parquet.NewGenericWriter[T](&out)
	if _, err := w.Write(rows); err != nil {
		return SmallTable{}, fmt.Errorf("writing table %s: %w", name, err)
	}
	if err := w.Close(); err != nil {
		return SmallTable{}, fmt.Errorf("writing table %s: %w", name, err)
	}
	return SmallTable{name, out.Bytes()}, nil
}

// triggeredMark is in the names of recordings that a trigger or a command made.
const triggeredMark = "-flight-"

func isTriggered(base string) bool { return strings.Contains(base, triggeredMark) }
