package archive

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// schemaVersion is the version of the folder, its tables and its manifest. A reader refuses a newer one; tables and
// columns are added without raising it.
const schemaVersion = 1

// Extension is how the name of a recording's folder ends, and Packed that of its packed form.
const (
	Extension = ".isc"
	Packed    = ".isc.zip"
)

// manifestName is the file that makes a folder a recording.
const manifestName = "manifest.json"

// format identifies the manifest of a recording.
const format = "inferscope-recording"

// recordingState reports whether a recording was finished.
type recordingState string

// The states.
const (
	Writing  recordingState = "writing"  // a writer is at work, or was ended before it finished
	Complete recordingState = "complete" //
)

// Manifest lists the content of a recording. It is written last: what it does not list is not part of the recording.
type Manifest struct {
	Format    string               `json:"format"` // inferscope-recording
	Schema    int                  `json:"schema"` // of the folder
	State     recordingState       `json:"state"`
	Writer    string               `json:"written_by"` // version of the program that wrote the folder
	Recorder  string               `json:"recorded_by"`
	Stream    int                  `json:"recording_schema"` // recording.SchemaVersion
	Host      recording.Host       `json:"host"`
	Target    uint32               `json:"target_pid"`
	From      uint64               `json:"from_ns"`            // CLOCK_MONOTONIC
	To        uint64               `json:"to_ns"`              // CLOCK_MONOTONIC
	WallFrom  int64                `json:"wall_from_ns"`       // from_ns on the wall clock, ns since 1970
	Clock     *Clock               `json:"clock,omitempty"`    // nil: nothing in the recording bounds the error
	GPU       *string              `json:"gpu_mode"`           // continuous, windows, off; null: no agent was asked for
	Sources   []recording.Source   `json:"sources,omitempty"`  // as in their table, for people
	Losses    []loss.Loss          `json:"losses,omitempty"`   // as in their table, for people
	Overhead  *recording.Overhead  `json:"overhead,omitempty"` // what watching cost, at the end of the last stretch
	RAS       *recording.RAS       `json:"ras,omitempty"`      // what NCCL's RAS said, at the end of the last stretch
	Driver    *recording.Driver    `json:"driver,omitempty"`   // what it said beside the sensors
	Stretches []stretch            `json:"stretches"`          //
	Tables    map[string]tableInfo `json:"tables"`             // by name
}

// Clock is the offset of the GPU's clock against the host's, as the causal order shows it.
type Clock struct {
	Error uint64 `json:"error_ns"` // ns: the clocks are at least so far apart
	Bound uint64 `json:"bound_ns"` // ns: they are at most so far apart; 0: not known
	Pairs int    `json:"pairs"`    // pairs of times that this rests on
}

// stretch is one stretch of time, as it was written.
type stretch struct {
	Number int    `json:"number"`  // in the names of its files, from 1
	From   uint64 `json:"from_ns"` // CLOCK_MONOTONIC
	To     uint64 `json:"to_ns"`   // CLOCK_MONOTONIC
	Events int    `json:"events"`
}

// tableInfo lists the files of one table, the oldest first. A table without files holds no rows.
type tableInfo struct {
	Files []parquetFile `json:"files"`
}

// parquetFile is one Parquet file.
type parquetFile struct {
	Name   string `json:"name"` // table/number.parquet, below the folder
	Rows   int    `json:"rows"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"` // of the whole file, hexadecimal
}

// Rows returns how many rows the table has.
func (t *tableInfo) Rows() int {
	n := 0
	for _, f := range t.Files {
		n += f.Rows
	}
	return n
}

// Bytes returns the size of the table's files.
func (t *tableInfo) Bytes() int64 {
	var n int64
	for _, f := range t.Files {
		n += f.Bytes
	}
	return n
}

// Events returns how many events the recording holds.
func (m *Manifest) Events() int {
	n := 0
	for _, s := range m.Stretches {
		n += s.Events
	}
	return n
}

// maxManifest bounds the manifest: an hour of stretches takes some 2 MiB.
const maxManifest = 64 << 20

// maxManifestValues bounds what a manifest may hold: the smallest value takes two bytes of text and a hundred in
// memory.
const maxManifestValues = 6 << 20

// Names of tables and files, as writers choose them.
var (
	tableName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)
	fileName  = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\.parquet$`)
)

// parseManifest decodes a manifest and refuses what could lead out of the folder or make no sense.
func parseManifest(text []byte) (*Manifest, error) {
	if n := bytes.Count(text, []byte{','}) + bytes.Count(text, []byte{'{'}); n > maxManifestValues {
		return nil, fmt.Errorf("its %s has %d values, over the limit of %d", manifestName, n, maxManifestValues)
	}
	m := new(Manifest)
	if err := json.Unmarshal(text, m); err != nil {
		return nil, fmt.Errorf("decode %s: %w", manifestName, err)
	}
	switch {
	case m.Format != format:
		return nil, fmt.Errorf("its %s is not one of InferScope", manifestName)
	case m.Schema > schemaVersion || m.Stream > recording.SchemaVersion:
		return nil, fmt.Errorf(
			"it has schema %d and this program knows schemas up to %d: use a newer inferscope",
			max(m.Schema, m.Stream),
			schemaVersion,
		)
	case m.Schema < 1:
		return nil, fmt.Errorf("it has schema %d, which does not exist", m.Schema)
	case m.From > m.To:
		return nil, fmt.Errorf("its window ends at %d ns, before its start at %d ns", m.To, m.From)
	}
	for name, t := range m.Tables {
		if err := t.check(name); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (t *tableInfo) check(name string) error {
	if !tableName.MatchString(name) {
		return fmt.Errorf("%q is no name of a table", name)
	}
	for _, f := range t.Files {
		dir, base := path.Split(f.Name)
		if dir != name+"/" || !fileName.MatchString(base) || strings.Contains(base, "..") {
			return fmt.Errorf("table %s: %q is no name of one of its files", name, f.Name)
		}
		if f.Rows < 0 || f.Bytes < 0 || f.Rows > maxFileRows || f.Bytes > maxFileBytes {
			return fmt.Errorf("%s: %d rows and %d bytes are more than a file may have", f.Name, f.Rows, f.Bytes)
		}
	}
	return nil
}

// maxFileBytes bounds a file, which is read whole: 1 GiB.
const maxFileBytes = 1 << 30

// meta returns what the manifest itself says of a recording's Meta.
func (m *Manifest) meta() recording.Meta {
	meta := recording.Meta{
		Schema: m.Stream, Version: m.Recorder, Host: m.Host, Target: m.Target,
		From: m.From, To: m.To, WallFrom: m.WallFrom, Overhead: m.Overhead, RAS: m.RAS,
		Driver: m.Driver,
	}
	if m.GPU != nil {
		meta.GPU = &recording.GPU{Mode: *m.GPU}
	}
	return meta
}

// describe stores what is not in tables.
func (m *Manifest) describe(meta *recording.Meta) {
	m.Stream, m.Recorder, m.Host, m.Target = meta.Schema, meta.Version, meta.Host, meta.Target
	m.From, m.To, m.WallFrom = meta.From, meta.To, meta.WallFrom
	m.Sources, m.Losses, m.GPU, m.Overhead, m.RAS = meta.Sources, meta.Losses, nil, meta.Overhead, meta.RAS
	m.Driver = meta.Driver
	if meta.GPU != nil {
		mode := meta.GPU.Mode
		m.GPU = &mode
	}
}

// ErrEmpty means that a recording has no part yet: its writer ended before it wrote one.
var ErrEmpty = errors.New(
	"it holds no stretch of time: its writer was ended before it had written one, or is about to write it",
)
