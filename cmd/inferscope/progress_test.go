package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/testkit/exporttest"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestSlowCommandsShowThatTheyGoOn: whatever takes longer than a second says so on a terminal.
func TestSlowCommandsShowThatTheyGoOn(t *testing.T) {
	const slow = progressAfter + time.Second
	socket := answer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut || r.Method == http.MethodDelete {
			time.Sleep(slow)
		}
		switch {
		case r.Method == http.MethodPut:
			_, _ = w.Write([]byte("{}"))
		case r.URL.Path == "/v1/targets":
			_, _ = w.Write([]byte(`[{"pid": 1234, "state": "watching"}]`))
		default:
			_, _ = w.Write([]byte("[]"))
		}
	})
	dir := t.TempDir()
	duckdb := filepath.Join(dir, "duckdb")
	writeScript(t, duckdb, "#!/bin/sh\nsleep 2\n")
	file := filepath.Join(dir, "t"+archive.Extension)
	must.NoError(t, archive.Write(file, exporttest.Hostile(nil, "k"), nil))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"flight": {[]string{"flight"}, "waiting for the daemon to write what it remembers: 1 s"},
		"attach": {[]string{"attach", "5"}, "waiting for the daemon to watch pid 5: 1 s"},
		"detach": {[]string{"detach", "1234"}, "waiting for probes and agent to leave pid 1234: 1 s"},
		"query":  {[]string{"query", "SELECT 1", file}, "asking t.isc: 1 s"},
	} {
		t.Run(name, func(t *testing.T) {
			person, tty := openTerminal(t)
			env := []string{api.SocketEnv + "=" + socket}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				run(t.Context(), process{args: c.args, environ: env, stdout: &strings.Builder{}, stderr: tty})
			}()
			var got string
			for chunk := make([]byte, 4096); !strings.Contains(got, c.says); {
				n, err := person.Read(chunk)
				if got += string(chunk[:n]); err != nil || len(got) > 1<<16 {
					t.Fatalf("%v, after %q", err, got)
				}
				select {
				case <-ended:
					t.Fatalf("it ended without %q: %q", c.says, got)
				default:
				}
			}
			<-ended
		})
	}
}
