// Package must ends tests that cannot go on.
package must

import "testing"

// NoError ends the test with err, at the caller's line, unless it is nil.
func NoError(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
