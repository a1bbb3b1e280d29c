// Package needs skips tests that cannot run here. scripts/test.sh forbids skips by the beginning of their message where
// nothing should be missing.
package needs

import (
	"os"
	"os/exec"
	"testing"
)

// Root skips a test unless it runs as root. why says what it does with that.
func Root(tb testing.TB, why string) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("needs root: " + why)
	}
}

// Tool returns the path of a program that `make test-all` installs, and skips the test where it is missing.
func Tool(tb testing.TB, name string) string {
	tb.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		tb.Skipf("needs tool %s: %v", name, err)
	}
	return path
}

// Long leaves a test to `make test-all`: `make test` runs go test -short.
func Long(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("takes long: runs in make test-all")
	}
}
