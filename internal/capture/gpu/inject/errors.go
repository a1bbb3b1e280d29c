package inject

import "errors"

// Why an image is not injected into a process. Every error of Load that is about the
// process, and not about this machine, wraps one of them; test with errors.Is.
var (
	ErrIdle       = errors.New("the process makes no CUDA call")
	ErrGone       = errors.New("the process has ended")
	ErrStopped    = errors.New("the process is stopped by a signal")
	ErrTraced     = errors.New("the process is being traced")
	errDenied     = errors.New("tracing the process is not permitted")
	errSeccomp    = errors.New("a seccomp filter of the process stands in the way")
	errShadow     = errors.New("the process uses a shadow stack")
	errClass      = errors.New("the process does not run 64-bit code of this machine")
	errLibc       = errors.New("the process has no libc that can be used")
	ErrShared     = errors.New("the process shares its memory with another")
	errProc       = errors.New("the process has no /proc of its own")
	errSignal     = errors.New("the process handles or blocks every signal that could stop it")
	ErrStack      = errors.New("no thread that calls CUDA has a stack that is large enough and known")
	errMemory     = errors.New("the process may not make an executable memory file")
	errNoCUDA     = errors.New("the process has no CUDA driver library that can be probed")
	ErrNoAnswer   = errors.New("the image was handed over and does not answer")
	ErrMoved      = errors.New("the process kept changing")
	ErrPreceded   = errors.New("the image has come into the process by itself")
	errNotCalled  = errors.New("the thread made no CUDA call in time")
	errAllRefused = errors.New("all threads that call CUDA were refused")
	errWrongPlace = errors.New("the thread was stopped elsewhere")
)

// What to do where nothing better is known.
const (
	hintStart = "start the program with `inferscope run`, which loads the agent at its start"
	hintClass = "run a 64-bit build of the program for this machine"
)

// Refusal is an error that says what to do about it.
type Refusal struct {
	Reason error  // one of the errors above
	Detail string // what was found, in words
	Hint   string // one sentence: what to do next; "" where nothing helps
	Cause  error  // of the system; nil where there is none
}

// Error returns reason, detail and cause.
func (r *Refusal) Error() string {
	text := r.Reason.Error()
	if r.Detail != "" {
		text += ": " + r.Detail
	}
	if r.Cause != nil {
		text += ": " + r.Cause.Error()
	}
	return text
}

// Unwrap returns the reason and the cause.
func (r *Refusal) Unwrap() []error {
	if r.Cause == nil {
		return []error{r.Reason}
	}
	return []error{r.Reason, r.Cause}
}

// HintOf returns the advice that err carries, or "".
func HintOf(err error) string {
	var r *Refusal
	if errors.As(err, &r) {
		return r.Hint
	}
	return ""
}

func refuse(reason error, detail, hint string) error {
	return &Refusal{Reason: reason, Detail: detail, Hint: hint}
}
