// Package long marks tests that take long.
package long

import "testing"

// Test leaves a test to `make test-all`: `make test` runs go test -short.
func Test(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("takes long: runs in make test-all")
	}
}
