// Package clierror gives the errors that a person meets their exit code and their
// advice: what failed is the wrapped error, what to do next is the hint.
package clierror

import "errors"

// Code is a process exit code. The values are documented in docs/architecture.md
// and never change their meaning.
type Code int

// The exit codes of inferscope and inferscoped.
const (
	OK          Code = 0
	General     Code = 1 // anything without a code of its own
	Usage       Code = 2 // flags or arguments are off
	NoProcess   Code = 3 // no such process, or one that cannot be a target
	Permission  Code = 4 // a capability is missing, or the daemon refuses this user
	Unsupported Code = 5 // the kernel lacks something that is needed
	NoDaemon    Code = 6 // the daemon cannot be reached
	Busy        Code = 7 // another daemon holds the socket
	Regression  Code = 8 // what was compared became worse than is allowed: inferscope diff --fail-over
)

// Fault is an error with an exit code and advice.
type Fault struct {
	Code Code
	Hint string // one sentence that says what to do next
	Err  error
}

// New wraps err with a code and a hint.
func New(code Code, hint string, err error) *Fault {
	return &Fault{Code: code, Hint: hint, Err: err}
}

// Error returns the message of the wrapped error; the hint is printed apart.
func (f *Fault) Error() string { return f.Err.Error() }

// Unwrap returns the wrapped error.
func (f *Fault) Unwrap() error { return f.Err }

// CodeOf returns the exit code for err: OK for nil, General for an error without a code.
func CodeOf(err error) Code {
	var f *Fault
	switch {
	case err == nil:
		return OK
	case errors.As(err, &f):
		return f.Code
	}
	return General
}

// HintOf returns the advice that err carries, or "".
func HintOf(err error) string {
	var f *Fault
	if errors.As(err, &f) {
		return f.Hint
	}
	return ""
}
