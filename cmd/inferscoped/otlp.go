package main

import (
	"fmt"
	"math"

	"github.com/spf13/pflag"

	"github.com/inferscope/inferscope/internal/daemon/config"
	"github.com/inferscope/inferscope/internal/daemon/push"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

// Environment variables of OpenTelemetry that are used.
const (
	endpointEnv = "OTEL_EXPORTER_OTLP_ENDPOINT"
	headersEnv  = "OTEL_EXPORTER_OTLP_HEADERS"
	protocolEnv = "OTEL_EXPORTER_OTLP_PROTOCOL"
)

// otlpFlags are the flags about OpenTelemetry as they were typed.
type otlpFlags struct {
	endpoint string
	sample   float64
	legacy   bool
}

func (f *otlpFlags) register(set *pflag.FlagSet, environ config.Environment) {
	endpoint, _ := environ.Get(endpointEnv)
	set.StringVar(&f.endpoint, "otlp-endpoint", endpoint,
		"send spans and metrics of requests to this OTLP/HTTP receiver, e.g. http://127.0.0.1:4318; also "+endpointEnv+
			"; empty: nowhere")
	set.Float64Var(&f.sample, "otlp-sample", 1,
		"share of requests without a traceparent that get a span, 0 to 1; of others the client has decided")
	set.BoolVar(&f.legacy, "otlp-legacy-names", false,
		"add names from before semantic conventions 1.37: gen_ai.system, gen_ai.usage.prompt_tokens, llm.request.type")
}

// options returns the export settings; nil if nothing is exported.
func (f *otlpFlags) options(environ config.Environment) (*push.Options, error) {
	if f.sample < 0 || f.sample > 1 || math.IsNaN(f.sample) {
		return nil, clierror.New(clierror.Usage, "choose 0 to 1",
			fmt.Errorf("--otlp-sample: %g is out of range", f.sample))
	}
	if f.endpoint == "" {
		return nil, nil
	}
	headers, _ := environ.Get(headersEnv)
	endpoint, err := push.ParseEndpoint(f.endpoint, headers)
	if err != nil {
		return nil, err
	}
	return &push.Options{Endpoint: endpoint, Share: f.sample, Legacy: f.legacy}, nil
}

// warnings returns why data is not exported, or not in the requested form.
func (f *otlpFlags) warnings(environ config.Environment, requests bool) []string {
	var out []string
	if f.endpoint == "" {
		return nil
	}
	if !requests {
		out = append(out, "nothing is sent to the OTLP endpoint: --requests=off")
	}
	if v, _ := environ.Get(protocolEnv); v != "" && v != "http/protobuf" {
		out = append(out, "the OTLP endpoint gets http/protobuf, whatever "+protocolEnv+" says")
	}
	return out
}
