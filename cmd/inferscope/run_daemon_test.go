package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestIgnoredFlags: run warns of flags that a running daemon does not take, and not of --cupti: the program's own agent
// has that.
func TestIgnoredFlags(t *testing.T) {
	socket := serve(t, newFakeDaemon())
	for flags, warns := range map[runFlags]bool{
		{}: false, {cupti: "/opt/libcupti.so.13"}: false, {gpu: "continuous"}: true, {sampleHz: "99"}: true,
	} {
		var stderr bytes.Buffer
		g := newGlobal(process{stderr: &stderr})
		g.socket = socket
		_, err := g.attach(&job{flags: &flags})
		must.NoError(t, err)
		if strings.Contains(stderr.String(), "are ignored") != warns {
			t.Errorf("%+v: %q", flags, stderr.String())
		}
	}
}
