package sampler_test

import (
	"os"
	"strconv"
	"testing"
)

func atoi(t testing.TB, s string) uint32 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(n)
}

func itoa(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

func kill(pid uint32) {
	if p, err := os.FindProcess(int(pid)); err == nil {
		_ = p.Kill()
	}
}
