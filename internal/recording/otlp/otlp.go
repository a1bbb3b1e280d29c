// Package otlp makes OpenTelemetry's spans and metrics of the requests that a target served, with the names of package
// genai. It is pure: who has a recording, or a request that has just ended, calls it.
package otlp

import (
	"maps"
	"slices"
	"strings"

	common "go.opentelemetry.io/proto/otlp/common/v1"
	resource "go.opentelemetry.io/proto/otlp/resource/v1"

	"github.com/inferscope/inferscope/internal/format/version"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/genai"
)

// Server is what is known of the process that served requests.
type Server struct {
	PID      uint32
	Comm     string
	Service  string            // service.name
	Provider string            // gen_ai.provider.name; "": not known
	More     map[string]string // further attributes of the resource: of its host or pod
	// Legacy has spans and metrics carry names of before semantic conventions 1.37, too: gen_ai.system and its like.
	Legacy bool
}

// NewServer describes process p of a target whose first process is root. engine says whether messages of an inference
// engine were read.
func NewServer(p, root *recording.Process, engine bool, more map[string]string) Server {
	name := genai.Service(p)
	if name == p.Comm { // a worker of multiprocessing says nothing of its program
		name = genai.Service(root)
	}
	return Server{PID: p.PID, Comm: p.Comm, Service: name, Provider: genai.Provider(p, root, engine), More: more}
}

// resource returns the resource of a server.
func (s *Server) resource() *resource.Resource {
	attributes := []*common.KeyValue{
		text("service.name", s.Service),
		number("process.pid", uint64(s.PID)),
		text("process.executable.name", s.Comm),
	}
	for _, k := range slices.Sorted(maps.Keys(s.More)) {
		if s.More[k] != "" {
			attributes = append(attributes, text(k, s.More[k]))
		}
	}
	return &resource.Resource{Attributes: attributes}
}

// scope is who made spans and metrics.
func scope() *common.InstrumentationScope {
	return &common.InstrumentationScope{Name: "inferscope", Version: version.Get().Version}
}

// valid makes a string that protobuf takes out of one that a target may have chosen.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func text(key, v string) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: stringValue(v)}
}

func stringValue(v string) *common.AnyValue {
	return &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: valid(v)}}
}

func number(key string, v uint64) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: int64(v)}}}
}

func seconds(key string, ns uint64) *common.KeyValue {
	v := &common.AnyValue_DoubleValue{DoubleValue: float64(ns) / 1e9}
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: v}}
}

func truth(key string, v bool) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_BoolValue{BoolValue: v}}}
}
