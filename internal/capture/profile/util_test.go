package profile_test

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

func atoi(t testing.TB, s string) uint32 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 32)
	must.NoError(t, err)
	return uint32(n)
}

func itoa(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

func kill(pid uint32) {
	if p, err := os.FindProcess(int(pid)); err == nil {
		_ = p.Kill()
	}
}

// mapped returns the files that a process has code of.
func mapped(t testing.TB, pid uint32) []string {
	t.Helper()
	text, err := os.ReadFile("/proc/" + itoa(pid) + "/maps")
	must.NoError(t, err)
	var out []string
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) == 6 && strings.Contains(f[1], "x") && strings.HasPrefix(f[5], "/") {
			out = append(out, f[5])
		}
	}
	return out
}
