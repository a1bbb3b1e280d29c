package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// raw sends text to the server and returns what it answers; the body is read whole.
func raw(t *testing.T, socket, text string) (*http.Response, string) {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	must.NoError(t, err)
	defer conn.Close()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must.NoError(t, err)
	return resp, string(body)
}

func TestWhatIsNoRequestOfOurs(t *testing.T) {
	socket := serve(t, newFake(), patient())
	for _, c := range []struct {
		name, text string
		status     int
		code       string
	}{
		{"unknown path", "GET /v2/status HTTP/1.1\r\nHost: x\r\n\r\n", 400, "usage"},
		{"below a path", "GET /v1/status/x HTTP/1.1\r\nHost: x\r\n\r\n", 400, "usage"},
		{"other method", "DELETE /v1/status HTTP/1.1\r\nHost: x\r\n\r\n", 400, "usage"},
		{"a body", "GET /v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nabcd", 400, "usage"},
		{"a chunked body", "GET /v1/status HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "usage"},
		{"no target", "GET /v1/recording?pid=999 HTTP/1.1\r\nHost: x\r\n\r\n", 404, "no_process"},
		{"nonsense", "\x16\x03\x01\r\n\r\n", 400, ""},
		{"long header", "GET /v1/status HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("a", 64<<10) + "\r\n\r\n", 431, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, body := raw(t, socket, c.text)
			if resp.StatusCode != c.status {
				t.Errorf("status %d, want %d", resp.StatusCode, c.status)
			}
			if c.code == "" {
				return
			}
			var e ErrorBody
			if err := json.Unmarshal([]byte(body), &e); err != nil || e.Code != c.code || e.Message == "" ||
				e.Hint == "" {
				t.Errorf("body %s (%v), want code %q with message and hint", body, err, c.code)
			}
		})
	}
}

func TestSlowHeadersAreCutOff(t *testing.T) {
	limits := patient()
	limits.Request = 20 * time.Millisecond
	socket := serve(t, newFake(), limits)
	conn, err := net.Dial("unix", socket)
	must.NoError(t, err)
	defer conn.Close()
	fmt.Fprint(conn, "GET /v1/status HTTP/1.1\r\nHos")
	if _, err := io.ReadAll(conn); err != nil { // a hang here is the failure
		t.Errorf("read = %v, want the end", err)
	}
}

func TestBodyThatNeverEndsIsCutOff(t *testing.T) {
	limits := patient()
	limits.Request = 20 * time.Millisecond
	socket := serve(t, newFake(), limits)
	conn, err := net.Dial("unix", socket)
	must.NoError(t, err)
	defer conn.Close()
	fmt.Fprint(conn, "GET /v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc")
	if _, err := io.ReadAll(conn); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("read = %v, want the end", err)
	}
}

func TestConnectionWithoutCredentialsIsRefused(t *testing.T) {
	s := NewServer(newFake(), patient(), nil)
	_, err := peerFrom(context.Background())
	wantFault(t, err, clierror.Permission)
	// A TCP connection has no peer: Serve must not let it in by mistake.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	go s.Serve(l) //nolint:errcheck // ended by Close below
	defer s.http.Close()
	resp, err := http.Get("http://" + l.Addr().String() + pathVersion)
	if err == nil {
		resp.Body.Close()
		t.Error("answered a connection of an unknown user")
	}
}

func TestNoDaemon(t *testing.T) {
	dir := publicDir(t)
	_, err := Dial(dir + "/nobody.sock")
	wantFault(t, err, clierror.NoDaemon)
	if hint := clierror.HintOf(err); hint != "start it with: sudo inferscoped" {
		t.Errorf("hint = %q", hint)
	}
	if strings.Count(err.Error(), dir) != 1 {
		t.Errorf("error %q does not name the socket once", err)
	}
	stale := dir + "/stale.sock"
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	must.NoError(t, err)
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	_, err = Dial(stale)
	wantFault(t, err, clierror.NoDaemon)
}

func TestDaemonThatGoesAwayAfterDial(t *testing.T) {
	path := publicDir(t) + "/s.sock"
	l, err := Listen(path)
	must.NoError(t, err)
	client := dial(t, path)
	_ = l.Close()
	_, err = client.Status(context.Background())
	wantFault(t, err, clierror.NoDaemon)
}

func TestSocketThatAUserMayNotReach(t *testing.T) {
	needs.Root(t, "it connects as other users")
	path := t.TempDir() + "/s.sock" // only root can enter the directory
	l, err := Listen(path)
	must.NoError(t, err)
	defer l.Close()
	client := dialAs(t, path, alice)
	transport := client.http.Transport.(*http.Transport)
	transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
		conn, err := connectAs(t, path, alice)
		if err != nil {
			return nil, client.refused(err)
		}
		return conn, nil
	}
	_, err = client.Status(context.Background())
	wantFault(t, err, clierror.Permission)
}

// answering serves one fixed answer to every request.
func answering(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	path := publicDir(t) + "/s.sock"
	l, err := net.Listen("unix", path)
	must.NoError(t, err)
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Second}
	go s.Serve(l) //nolint:errcheck // ended by Close below
	t.Cleanup(func() { _ = s.Close() })
	return dial(t, path)
}

func TestAnswersThatAreNoneOfADaemon(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"an error that is no JSON": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<html>", 502) },
		"an endless error": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(500)
			for i := 0; i < 100; i++ {
				if _, err := io.WriteString(w, strings.Repeat("a", 64<<10)); err != nil {
					return
				}
			}
		},
		"an empty error": func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, 500, ErrorBody{}) },
		"a redirect":     func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "http://x/", http.StatusFound) },
		"an unknown code": func(w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, 500, ErrorBody{Message: "m", Hint: "h", Code: "new"})
		},
		"not a recording":   func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, 200, 1) },
		"a recording's lie": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", RecordingType) },
	} {
		t.Run(name, func(t *testing.T) {
			_, err := answering(t, h).Recording(context.Background(), 1, Window{})
			wantFault(t, err, clierror.General)
		})
	}
}

func TestErrorsCrossTheWire(t *testing.T) {
	for _, row := range codeRows() {
		want := clierror.New(row.code, "do this", fmt.Errorf("what failed: %s", row.name))
		client := answering(t, func(w http.ResponseWriter, _ *http.Request) { writeError(w, want) })
		_, err := client.Status(context.Background())
		if clierror.CodeOf(err) != row.code || err.Error() != want.Error() || clierror.HintOf(err) != want.Hint {
			t.Errorf("%s arrives as %d %q %q", row.name, clierror.CodeOf(err), err, clierror.HintOf(err))
		}
	}
}
