package inject

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/inferscope/inferscope/internal/capture/proc"
)

// Await reads n bytes at offset off of the file of r until ready says that they are
// an answer, and returns them. If none comes before ctx is done it says what is
// likely to be in the way (ErrNoAnswer).
func (r *Result) Await(
	ctx context.Context,
	p *proc.Process,
	off int64,
	n int,
	ready func([]byte) bool,
) ([]byte, error) {
	answer := make([]byte, n)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if got, err := r.FD.ReadAt(answer, off); got == n && err == nil && ready(answer) {
			return answer, nil
		}
		if !p.Alive() {
			return nil, &Refusal{Reason: ErrGone}
		}
		select {
		case <-ctx.Done():
			return nil, r.silence(p, ctx.Err())
		case <-tick.C:
		}
	}
}

// silence looks at how far the image came.
func (r *Result) silence(p *proc.Process, cause error) error {
	why := &Refusal{Reason: ErrNoAnswer, Cause: cause, Hint: hintStart}
	mapped, err := proc.Mappings(p)
	if err != nil {
		return gone(p, errors.Join(why, err))
	}
	for _, m := range mapped {
		if strings.HasPrefix(m.Path, "/memfd:"+fileName) {
			why.Detail = "it is mapped and has not begun, or could not"
			return why
		}
	}
	s, err := readStatus(int(p.PID), r.Thread)
	switch {
	case err != nil:
		why.Detail = "the thread that was to load it has ended"
	case s.state == 'T' || s.state == 't':
		why.Detail = "the thread that was to load it is stopped"
	case lsmLabel(int(p.PID)) != "":
		why.Detail = fmt.Sprintf(
			"it is not mapped: a security module may forbid executable memory files (the process is %s)",
			lsmLabel(int(p.PID)),
		)
		why.Hint = "allow the process to execute memory files (SELinux: execmem and map of tmpfs files)"
	default:
		why.Detail = "it is not mapped: the target's dlopen failed, or waits for a lock"
	}
	return why
}
