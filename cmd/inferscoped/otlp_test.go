package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/inferscope/inferscope/internal/daemon/config"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

func TestOTLPFlags(t *testing.T) {
	for _, c := range []struct {
		args    []string
		environ config.Environment
		to      string // "": nowhere
		share   float64
		fails   bool
		warns   int
	}{
		{},
		{environ: config.Environment{endpointEnv + "=http://collector:4318"}, to: "http://collector:4318", share: 1},
		{
			args: []string{"--otlp-endpoint=http://other:1", "--otlp-sample=0.25"}, to: "http://other:1", share: 0.25,
			environ: config.Environment{endpointEnv + "=http://collector:4318", protocolEnv + "=grpc"}, warns: 1,
		},
		{args: []string{"--otlp-endpoint="}, environ: config.Environment{endpointEnv + "=http://collector:4318"}},
		{args: []string{"--otlp-endpoint=collector:4317"}, fails: true},
		{args: []string{"--otlp-sample=1.5"}, fails: true},
		{args: []string{"--otlp-sample=-0.1"}, fails: true},
		{args: []string{"--otlp-sample=nan"}, fails: true},
		{args: []string{"--otlp-endpoint=http://a"}, environ: config.Environment{headersEnv + "=x"}, fails: true},
	} {
		var f otlpFlags
		set := pflag.NewFlagSet("", pflag.ContinueOnError)
		f.register(set, c.environ)
		must.NoError(t, set.Parse(c.args))
		o, err := f.options(c.environ)
		if (err != nil) != c.fails || err != nil && clierror.CodeOf(err) != clierror.Usage ||
			(o != nil) != (c.to != "") {
			t.Errorf("%v %v: %v, %v", c.args, c.environ, o, err)
			continue
		}
		if o != nil && (o.Endpoint.String() != c.to || o.Share != c.share) {
			t.Errorf("%v %v: %v, %g", c.args, c.environ, o.Endpoint, o.Share)
		}
		if n := len(f.warnings(c.environ, true)); err == nil && n != c.warns {
			t.Errorf("%v %v: %d warnings", c.args, c.environ, n)
		}
	}
	f := otlpFlags{endpoint: "http://a"}
	if got := f.warnings(nil, false); len(got) != 1 || !strings.Contains(got[0], "--requests=off") {
		t.Errorf("%v", got)
	}
}
