// Package h2server starts testdata/h2server, which streams tokens over HTTP/2 and gRPC.
package h2server

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// Question is what a client asks.
type Question struct {
	Model     string `json:"model"`
	Stream    bool   `json:"stream"`
	MaxTokens int    `json:"max_tokens"`
	GapMS     int    `json:"gap_ms"`
	PrefillMS int    `json:"prefill_ms"`
	Prompt    string `json:"prompt"`
	Fail      bool   `json:"fail"` // over gRPC, behind the last token
}

// Raw is gRPC's codec for messages that are bytes.
type Raw struct{}

// Marshal returns the bytes.
func (Raw) Marshal(v any) ([]byte, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("%T is no message of bytes", v)
	}
	return *b, nil
}

// Unmarshal copies the bytes.
func (Raw) Unmarshal(data []byte, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("%T is no message of bytes", v)
	}
	*b = append([]byte(nil), data...)
	return nil
}

// Name is part of the content type.
func (Raw) Name() string { return "raw" }

// Server is one that runs.
type Server struct {
	PID  int
	HTTP string // its address
	GRPC string // likewise
}

const source = "github.com/inferscope/inferscope/testdata/h2server"

// Start builds the server and starts it; it ends with the test.
func Start(t testing.TB) Server {
	t.Helper()
	program := filepath.Join(t.TempDir(), "h2server")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, source)
	must.Run(t, build)
	server := child.Start(t, exec.CommandContext(t.Context(), program))
	var web, rpc int
	if _, err := fmt.Sscan(server.Line(), &web, &rpc); err != nil {
		t.Fatal(err)
	}
	return Server{PID: server.PID, HTTP: fmt.Sprintf("127.0.0.1:%d", web), GRPC: fmt.Sprintf("127.0.0.1:%d", rpc)}
}
