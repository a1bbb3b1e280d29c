package api

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/inferscope/inferscope/internal/format/clierror"
)

// ErrorBody is the body of every answer that is an error.
type ErrorBody struct {
	Message string `json:"error"`
	Hint    string `json:"hint,omitempty"` // what to do next
	Code    string `json:"code"`           // name of a clierror.Code: see codeRows
}

// ErrBusy is what a server says that does as much as it may at a time.
var ErrBusy = errors.New("the daemon is busy")

// codeRow ties a fault to its name on the wire and its HTTP status.
type codeRow struct {
	code   clierror.Code
	name   string
	status int
}

func codeRows() []codeRow {
	return []codeRow{
		{clierror.General, "general", http.StatusInternalServerError},
		{clierror.Usage, "usage", http.StatusBadRequest},
		{clierror.NoProcess, "no_process", http.StatusNotFound},
		{clierror.Permission, "permission", http.StatusForbidden},
		{clierror.Unsupported, "unsupported", http.StatusNotImplemented},
	}
}

// writeError answers with err. ErrBusy is no fault of either side: it has a status of its own.
func writeError(w http.ResponseWriter, err error) {
	body := ErrorBody{Message: err.Error(), Hint: clierror.HintOf(err), Code: "general"}
	status := http.StatusInternalServerError
	for _, row := range codeRows() {
		if row.code == clierror.CodeOf(err) {
			body.Code, status = row.name, row.status
		}
	}
	if errors.Is(err, ErrBusy) {
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, status, body)
}

// writeJSON answers with v. A failed write means that the caller is gone: nobody is left to tell.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// maxErrorBody bounds what a client reads of an error, in bytes.
const maxErrorBody = 64 << 10

// readError makes the fault out of an answer that is an error.
func readError(resp *http.Response) error {
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	var body ErrorBody
	if err != nil || json.Unmarshal(raw, &body) != nil || body.Message == "" {
		return clierror.New(clierror.General, "check that the socket belongs to an inferscoped of this version",
			errors.New("the daemon answered "+resp.Status+" without saying why"))
	}
	for _, row := range codeRows() {
		if row.name == body.Code {
			return clierror.New(row.code, body.Hint, errors.New(body.Message))
		}
	}
	return clierror.New(clierror.General, body.Hint, errors.New(body.Message))
}
