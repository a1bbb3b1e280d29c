package memlimit

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]int64{
		"2GB": 2e9, "2 gib": 2 << 30, "512MiB": 512 << 20, "1.5G": 1.5e9, "100000000": 1e8, "1TB": 1e12,
		"999999kB": 999999e3, "": 0, "0": 0, "-1GB": 0, "NaN": 0, "1": 0, "63MiB": 0, "1e400": 0, "9999999TB": 0,
		"lots": 0, "GB": 0,
	} {
		got, err := Parse(text)
		if got != want || (err == nil) != (want != 0) {
			t.Errorf("%q is %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestCgroupLimit(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(root, name)
		must.NoError(t, errors.Join(
			os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600),
		))
		return path
	}
	write("a/b/memory.max", "max\n")
	write("a/memory.max", "4000000\n")
	write("memory/x/memory.limit_in_bytes", "3000000\n")
	write("memory/memory.limit_in_bytes", "9223372036854771712\n")
	for text, want := range map[string]int64{
		"0::/a/b\n": 4000000, "0::/\n": math.MaxInt64, "7:memory:/x\n0::/\n": 3000000, "7:cpu,memory:/x/y\n": 3000000,
		"0::/../../other\n": math.MaxInt64, "nonsense\n": math.MaxInt64, "": math.MaxInt64,
	} {
		if got := cgroupLimit(write("self", text), root); got != want {
			t.Errorf("%q: %d instead of %d", text, got, want)
		}
	}
	if n := Default(); n < least {
		t.Errorf("the default is %d", n)
	}
}

func TestWatch(t *testing.T) {
	used, err := resident()
	must.NoError(t, err)
	ctx, stop := Watch(t.Context(), used+64<<20)
	defer stop()
	var hoard [][]byte
	for end := time.Now().Add(10 * time.Second); ctx.Err() == nil && time.Now().Before(end); {
		b := make([]byte, 1<<20)
		for i := range b {
			b[i] = 1
		}
		hoard = append(hoard, b)
	}
	var over *exceeded
	if cause := context.Cause(ctx); !errors.As(cause, &over) || !errors.Is(cause, ErrExceeded) ||
		over.Limit != used+64<<20 ||
		len(hoard) < 32 {
		t.Errorf("it ended with %v after %d MiB", cause, len(hoard))
	}
}
