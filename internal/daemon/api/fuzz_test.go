package api

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"testing"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
)

// FuzzParseDump: a request for stacks is of one process, or an error that a user can read.
func FuzzParseDump(f *testing.F) {
	f.Add("pid=1&children=true")
	f.Add("pid=4294967296&children=2&pid=1")
	fuzzing.Run(f, func(t *testing.T, raw string) {
		q, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		req, err := parseDump(q)
		if err != nil {
			if clierror.CodeOf(err) != clierror.Usage || len(err.Error()) > 1024 {
				t.Errorf("error %q is no usage fault, or repeats too much", err)
			}
			return
		}
		if req.PID == 0 || req.PID > 1<<31 || req.Children && !q.Has("children") {
			t.Errorf("%q: %+v", raw, req)
		}
	})
}

// FuzzReadError: whatever answers at the socket, the client gets an error, and not a long one.
func FuzzReadError(f *testing.F) {
	f.Add([]byte(`{"code":"usage","message":"no","hint":"do"}`), "400 Bad Request")
	f.Add([]byte(`[[[[`), "")
	fuzzing.Run(f, func(t *testing.T, body []byte, status string) {
		err := readError(&http.Response{Status: status, Body: io.NopCloser(bytes.NewReader(body))})
		if err == nil || len(err.Error()) > 6*maxErrorBody+len(status) {
			t.Errorf("%q: %v", body, err)
		}
	})
}
