// Package must ends tests that cannot go on.
package must

import (
	"os/exec"
	"testing"
	"time"
)

// hang is how long Become waits: it only finds what never comes.
const hang = time.Minute

// NoError ends the test with err, at the caller's line, unless it is nil.
func NoError(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// Become waits until ok returns true, and ends the test where that takes a minute. what names what is awaited.
func Become(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(hang); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("waited %v for: %s", hang, what)
		}
	}
}

// Run runs a command and ends the test with what it wrote unless it succeeds.
func Run(tb testing.TB, cmd *exec.Cmd) {
	tb.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}
