// Package must ends tests that cannot go on.
package must

import (
	"os/exec"
	"testing"
)

// NoError ends the test with err, at the caller's line, unless it is nil.
func NoError(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// Run runs a command and ends the test with what it wrote unless it succeeds.
func Run(tb testing.TB, cmd *exec.Cmd) {
	tb.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}
