package api

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestContinuousStretch: the stretch begins before the window and ends when it is recorded,
// before it is sent.
func TestContinuousStretch(t *testing.T) {
	b := newFake()
	socket := serve(t, b, patient())
	c := dial(t, socket)
	if _, err := c.Recording(t.Context(), alicePID, Window{For: 10 * time.Millisecond, GPU: GPUContinuous}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"begin", "record", "end"}; !slices.Equal(b.stretch, want) {
		t.Errorf("it went %v, want %v", b.stretch, want)
	}
	b.stretch = nil
	if _, err := c.Recording(t.Context(), alicePID, Window{For: 10 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"record"}; !slices.Equal(b.stretch, want) {
		t.Errorf("without being asked for it went %v, want %v", b.stretch, want)
	}
}

func TestContinuousIsRefused(t *testing.T) {
	b := newFake()
	socket := serve(t, b, patient())
	for query, want := range map[string]string{
		"pid=100&gpu=continuous":         "from now on",
		"pid=100&last=1s&gpu=continuous": "from now on",
		"pid=100&for=10ms&gpu=windows":   "not understood",
		"pid=100&for=10ms&gpu=":          "not understood",
	} {
		resp, body := raw(t, socket, "GET "+PathRecording+"?"+query+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		if resp.StatusCode != 400 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s, want %q", query, resp.StatusCode, body, want)
		}
	}
	if len(b.stretch) != 0 {
		t.Errorf("it went %v", b.stretch)
	}
}

// TestAgentsOfOthersAreHidden: the owner of a target sees the agents in it alone.
func TestAgentsOfOthersAreHidden(t *testing.T) {
	st := visible(newFake().Status(), alice)
	if len(st.Agents) != 1 || st.Agents[0].PID != aliceChild {
		t.Errorf("agents are %+v", st.Agents)
	}
}

// The log names processes and files of everybody.
func TestWarningsAreHidden(t *testing.T) {
	st := newFake().Status()
	st.Warnings, st.WarningsOmitted = []Warning{{Level: "warn", Message: "a secret"}}, 3
	if st = visible(st, alice); len(st.Warnings) != 0 || st.WarningsOmitted != 0 {
		t.Errorf("an unprivileged user sees %d warnings, and that %d are omitted", len(st.Warnings), st.WarningsOmitted)
	}
}
