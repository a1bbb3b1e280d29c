package export_test

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/pprof/profile"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/importer"
	"github.com/inferscope/inferscope/internal/testkit/exporttest"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
)

// FuzzExport: whatever a recording holds and names are, each export can be read back by what it is made for.
func FuzzExport(f *testing.F) {
	f.Add([]byte{}, "python")
	f.Add([]byte("\x01\x02\x03\x04\x05\x06\x07\x08\x07\x00\x01\x01"),
		"=cmd|' /C calc'!A0,\"\n\r;\x00\u202e\xff</script>")
	fuzzing.Run(f, func(t *testing.T, raw []byte, name string) {
		rec := exporttest.Hostile(raw, name)
		serve(rec, raw, name)
		checkExports(t, rec)
	})
}

// serve adds requests with a name and times that somebody chose.
func serve(rec *recording.Recording, raw []byte, name string) {
	m := &rec.Meta
	for ; len(raw) >= 8; raw = raw[8:] {
		at := func(i int) uint64 { return m.From + uint64(raw[i])*1e6 }
		m.Requests = append(m.Requests, recording.Request{
			PID: m.Target + uint32(
				raw[0]%3,
			), Number: uint64(len(raw)), Received: at(0), Asked: at(1), FirstToken: at(2),
			LastToken: at(
				3,
			), End: at(4) * uint64(raw[4]%2), Method: name, Route: name, Model: name, ID: name, Trace: name,
			Status: uint32(raw[5]), Outcome: "complete", OutputTokens: uint32(raw[6]),
		})
		m.EngineRequests = append(m.EngineRequests,
			recording.EngineRequest{ID: name, Scheduled: at(6), First: at(7), Last: at(1)})
		m.Steps = append(m.Steps, recording.Step{TS: at(5), PID: m.Target + uint32(raw[1]), Stats: true})
	}
}

// TestManyRequests: so many requests at a time have tracks, and the trace says how many have none.
func TestManyRequests(t *testing.T) {
	rec := exporttest.Decode(1)
	for i := range uint64(2000) {
		rec.Meta.Requests = append(rec.Meta.Requests, recording.Request{
			Number: i, PID: rec.Meta.Target, Received: rec.Meta.From + i, End: rec.Meta.To, Route: "/v1/completions",
		})
	}
	trace := write(t, rec, "perfetto")
	for text, want := range map[string]bool{"lane 1024": true, "lane 1025": false, "976 are left out": true} {
		if got := bytes.Contains(trace, []byte(text)); got != want {
			t.Errorf("the trace has %q: %v", text, got)
		}
	}
}

// FuzzExportNames is FuzzExport of a recording that is as it should be but for its names.
func FuzzExportNames(f *testing.F) {
	f.Add("=1+1")
	f.Add("\x00\n\r\t;,\"\\ </script>\xff\u2028")
	fuzzing.Run(f, func(t *testing.T, name string) {
		rec := exporttest.Hostile(nil, name)
		checkExports(t, rec)
		back, err := importer.ReadKineto(bytes.NewReader(write(t, rec, "kineto")), importer.DefaultLimits())
		if err != nil || len(back.Events) == 0 {
			t.Errorf("Kineto: what was written cannot be imported: %v", err)
		}
	})
}

func checkExports(t *testing.T, rec *recording.Recording) {
	t.Helper()
	kernels := 0
	tl := timeline.Build(rec)
	for i := range tl.Activities {
		if tl.Activities[i].Kind == timeline.Kernel {
			kernels++
		}
	}
	rows, err := csv.NewReader(bytes.NewReader(write(t, rec, "csv"))).ReadAll()
	if err != nil || len(rows) != kernels+1 {
		t.Errorf("CSV: %d rows of %d kernels (%v)", len(rows), kernels, err)
	}
	scan := bufio.NewScanner(bytes.NewReader(write(t, rec, "jsonl")))
	for scan.Buffer(nil, 1<<24); scan.Scan(); {
		if !json.Valid(scan.Bytes()) || !utf8.Valid(scan.Bytes()) {
			t.Fatalf("JSON lines: %q", scan.Text())
		}
	}
	if err := scan.Err(); err != nil {
		t.Errorf("JSON lines: %v", err)
	}
	kineto := write(t, rec, "kineto")
	if !json.Valid(kineto) || !utf8.Valid(kineto) {
		t.Errorf("Kineto: no JSON: %.300q", kineto)
	}
	p, err := profile.Parse(bytes.NewReader(write(t, rec, "pprof")))
	if err == nil {
		err = p.CheckValid()
	}
	if err != nil {
		t.Errorf("pprof: %v", err)
	}
	for line := range strings.Lines(string(write(t, rec, "folded"))) {
		i := strings.LastIndexByte(line, ' ')
		if n, err := strconv.ParseUint(strings.TrimSuffix(line[i+1:], "\n"), 10, 64); err != nil || n == 0 ||
			strings.Count(line[:i], ";") < 2 {
			t.Errorf("folded: %q", line)
		}
	}
	for line := range bytes.Lines(write(t, rec, "otlp")) {
		if !json.Valid(line) || !utf8.Valid(line) {
			t.Errorf("OTLP: %.300q", line)
		}
	}
	if trace := write(t, rec, "perfetto"); !packets(trace) {
		t.Errorf("Perfetto: %d bytes are not packets", len(trace))
	}
}

// packets reports whether a trace is TracePackets (field 1), each of whole fields.
func packets(trace []byte) bool {
	for len(trace) > 0 {
		number, kind, n := protowire.ConsumeTag(trace)
		if n < 0 || number != 1 || kind != protowire.BytesType {
			return false
		}
		packet, m := protowire.ConsumeBytes(trace[n:])
		if m < 0 {
			return false
		}
		trace = trace[n+m:]
		for len(packet) > 0 {
			_, _, k := protowire.ConsumeField(packet)
			if k < 0 {
				return false
			}
			packet = packet[k:]
		}
	}
	return true
}
