package request_test

import (
	"net/http"
	"os/exec"
	"testing"

	"google.golang.org/grpc/credentials"

	"github.com/inferscope/inferscope/internal/testkit/certificate"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// pythonWithH2 returns an interpreter that has the package h2.
func pythonWithH2(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(name, "-c", "import h2, sys; assert sys.version_info >= (3, 10)").Run() == nil {
			return name
		}
	}
	t.Skip("needs tool python3-h2 (scripts/install-deps.sh judges)")
	return ""
}

// TestStreamsOfHTTP2OverTLS: the same over TLS, where ALPN chose HTTP/2 and OpenSSL terminates it, with a server that
// the package h2 makes: numbers are exact with many streams of a connection at a time.
func TestStreamsOfHTTP2OverTLS(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	python := pythonWithH2(t)
	for _, way := range []string{"socket", "memory"} {
		for _, p := range []struct{ name, route, tokens string }{
			{"HTTP/2", "/v1/chat/completions", "usage"},
			{"gRPC", "/inference.GRPCInferenceService/ModelStreamInfer", "chunks"},
		} {
			t.Run(way+", "+p.name, func(t *testing.T) {
				cert, key, transport := certificate.Files(t)
				running := child.Start(t, exec.CommandContext(t.Context(), python, "../../../testdata/h2tls/server.py", cert, key, way))
				address := "127.0.0.1:" + running.Line()
				var protocols http.Protocols
				protocols.SetHTTP2(true)
				transport.Protocols = &protocols
				ask := askWith("https://"+address, transport)
				if p.name == "gRPC" {
					ask = dialGRPC(t, address, credentials.NewTLS(transport.TLSClientConfig))
				}
				s := watched(t, running.PID)
				checkStreams(t, s, ask, p.route, p.tokens)
				all := s.source.Requests(0, 1<<62)
				if last := all[len(all)-1]; (last.Port != 0) != (way == "socket") {
					t.Errorf("port %d", last.Port)
				}
			})
		}
	}
}
