package otlp

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	metrics "go.opentelemetry.io/proto/otlp/metrics/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/genai"
)

// spansPerLine keeps lines below 1 MiB, which is what the collector's receiver of files reads by default.
const spansPerLine = 256

// WriteJSON writes the requests of a recording as OTLP/JSON, as the collector's file exporter does: lines with spans,
// and a last one with metrics.
func WriteJSON(w io.Writer, m *recording.Meta) error {
	offset := m.WallFrom - int64(m.From)
	meter := NewMeter(m.WallFrom)
	byPID := map[uint32][]Request{}
	engines := recording.ByID(m.EngineRequests)
	for i := range m.Requests {
		r := &m.Requests[i]
		one := Request{Request: r}
		if r.ID != "" {
			one.Engine = engines[r.ID]
		}
		byPID[r.PID] = append(byPID[r.PID], one)
	}
	for _, pid := range slices.Sorted(maps.Keys(byPID)) {
		p, root := processes(m, pid)
		server := NewServer(p, root, len(m.Steps) > 0, map[string]string{"host.arch": m.Host.Arch})
		var ended []Request
		for _, r := range byPID[pid] {
			if genai.Ended(r.Request) && r.End <= m.To {
				ended = append(ended, r)
				if r.End >= m.From {
					meter.Add(&server, &r)
				}
			}
		}
		for part := range slices.Chunk(ended, spansPerLine) {
			spans := Spans(&server, part, offset)
			if err := line(w, &trace.TracesData{ResourceSpans: []*trace.ResourceSpans{hexIDs(spans)}}); err != nil {
				return err
			}
		}
	}
	if len(meter.servers) == 0 {
		return nil
	}
	return line(w, &metrics.MetricsData{ResourceMetrics: meter.Metrics(m.WallFrom + int64(m.To-m.From))})
}

// processes returns the last process with a pid, and the first one of the target.
func processes(m *recording.Meta, pid uint32) (p, root *recording.Process) {
	root = &recording.Process{PID: m.Target}
	for i := range m.Processes {
		q := &m.Processes[i]
		if q.PID == pid {
			p = q
		}
		if q.Parent == 0 && q.PID == m.Target {
			root = q
		}
	}
	return cmp.Or(p, &recording.Process{PID: pid}), root
}

// hexIDs changes ids so that protojson, which writes bytes in base64, writes them as OTLP/JSON has them, in
// hexadecimal: an id's hexadecimal digits are base64 of other bytes.
func hexIDs(r *trace.ResourceSpans) *trace.ResourceSpans {
	change := func(id []byte) []byte {
		out, _ := base64.StdEncoding.DecodeString(hex.EncodeToString(id)) // a multiple of four digits: no error
		return out
	}
	for _, s := range r.ScopeSpans {
		for _, span := range s.Spans {
			span.TraceId, span.SpanId = change(span.TraceId), change(span.SpanId)
			span.ParentSpanId = change(span.ParentSpanId)
		}
	}
	return r
}

// line writes one message, always the same way: protojson changes its spaces from build to build.
func line(w io.Writer, m proto.Message) error {
	raw, err := protojson.MarshalOptions{UseEnumNumbers: true}.Marshal(m)
	if err != nil {
		return fmt.Errorf("OTLP: %w", err)
	}
	var out bytes.Buffer
	if err := json.Compact(&out, raw); err != nil {
		return fmt.Errorf("OTLP: %w", err)
	}
	out.WriteByte('\n')
	_, err = w.Write(out.Bytes())
	return err
}
