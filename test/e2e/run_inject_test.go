package e2e

import (
	"strings"
	"testing"
)

// TestRunNoInject: nothing is put into a program's environment that would inject an agent into it where it, or the
// daemon that watches it, shall have none.
func TestRunNoInject(t *testing.T) {
	t.Parallel()
	show := []string{"--", "/bin/sh", "-c", `echo "agent=$CUDA_INJECTION64_PATH"`}
	injected := func(r *runner, args ...string) bool {
		f := r.run(append(args, show...)...)
		f.says(t, 0)
		return !strings.Contains(f.stdout, "agent=\n")
	}
	r := newRunner(t)
	if !injected(r) {
		t.Error("no agent is given to a program that may have one")
	}
	for _, args := range [][]string{{"--no-inject"}, {"--gpu", "off"}} {
		if injected(r, args...) {
			t.Errorf("%v: a program is given an agent", args)
		}
	}
	for _, args := range [][]string{{"--no-inject"}, {"--gpu", "off"}, {}} {
		d := launchDaemon(t, append([]string{"--on-request"}, args...)...)
		d.waitLog("ready")
		r.env = append(r.env, "INFERSCOPE_SOCKET="+d.socket)
		if got, want := injected(r), len(args) == 0; got != want {
			t.Errorf("a daemon started with %v: a program is given an agent: %v", args, got)
		}
		if len(args) == 0 {
			f := r.run(append([]string{"--no-inject"}, show...)...)
			f.says(t, 2, "brings agents into programs", "start that daemon with --no-inject")
			if f.stdout != "" {
				t.Errorf("the program ran: %q", f.stdout)
			}
		}
		d.stop()
	}
}
