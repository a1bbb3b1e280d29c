package symbol_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/symbol"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// libraries returns the files to measure with: those in the colon-separated
// INFERSCOPE_BENCH_LIBS, such as PyTorch's, else the C library's.
func libraries(tb testing.TB) []string {
	tb.Helper()
	if list := os.Getenv("INFERSCOPE_BENCH_LIBS"); list != "" {
		return strings.Split(list, ":")
	}
	found, err := filepath.Glob("/lib*/*/libc.so.6")
	if err != nil || len(found) == 0 {
		tb.Skip("no library to measure with; name some in INFERSCOPE_BENCH_LIBS")
	}
	return found[:1]
}

// code returns the range of addresses in which a file's code lies.
func code(tb testing.TB, m symbol.Module) (from, to uint64) {
	tb.Helper()
	f, err := m.Open()
	must.NoError(tb, err)
	defer f.Close()
	segments, err := symbol.ReadSegments(f)
	must.NoError(tb, err)
	for _, s := range segments {
		if s.Executable && s.Size > to-from {
			from, to = s.Addr, s.Addr+s.Size
		}
	}
	return from, to
}

func BenchmarkBuild(b *testing.B) {
	for _, path := range libraries(b) {
		b.Run(filepath.Base(path), func(b *testing.B) {
			m := module(path)
			from, _ := code(b, m)
			var s symbol.Stats
			for b.Loop() {
				t := symbol.New(symbol.Options{})
				t.Resolve(m, from)
				s = t.Stats()
			}
			b.ReportMetric(float64(s.Bytes), "kept-B")
			b.ReportMetric(float64(s.Failures), "failures")
			b.ReportAllocs()
		})
	}
}

func BenchmarkResolve(b *testing.B) {
	for _, path := range libraries(b) {
		m := module(path)
		from, to := code(b, m)
		f, err := m.Open()
		must.NoError(b, err)
		key, err := symbol.Identify(f)
		f.Close()
		must.NoError(b, err)
		keyed := m
		keyed.Key = key
		b.Run("miss/"+filepath.Base(path), func(b *testing.B) {
			t := symbol.New(symbol.Options{})
			t.Resolve(m, from)
			r := rand.New(rand.NewPCG(1, 2))
			for b.Loop() {
				t.Resolve(keyed, from+r.Uint64N(to-from))
			}
			s := t.Stats()
			b.ReportMetric(100*float64(s.Hits)/float64(s.Hits+s.Misses), "hit-%")
			b.ReportMetric(float64(s.Bytes), "kept-B")
		})
		for name, m := range map[string]symbol.Module{"hit-keyed/": keyed, "hit/": m} {
			b.Run(name+filepath.Base(path), func(b *testing.B) {
				t := symbol.New(symbol.Options{})
				var addrs [256]uint64
				for i := range addrs {
					addrs[i] = from + uint64(i)*(to-from)/256
					t.Resolve(m, addrs[i])
				}
				i := 0
				for b.Loop() {
					t.Resolve(m, addrs[i%256])
					i++
				}
			})
		}
	}
}

// BenchmarkStream is an invented load on every file at once, far wider than what is
// sampled: 64 addresses an operation, every twentieth of them anywhere. Its hit rate
// says nothing but that; what is kept and resident is what it is for.
func BenchmarkStream(b *testing.B) {
	var modules []symbol.Module
	var from, to []uint64
	for _, path := range libraries(b) {
		m := module(path)
		f, t := code(b, m)
		modules, from, to = append(modules, m), append(from, f), append(to, t)
	}
	table := symbol.New(symbol.Options{})
	r := rand.New(rand.NewPCG(1, 2))
	hot := rand.NewZipf(r, 1.2, 1, 2000)
	for b.Loop() {
		for range 64 {
			i := r.IntN(len(modules))
			at := r.Uint64N(to[i] - from[i])
			if r.IntN(20) != 0 {
				at = hot.Uint64() * 7919 * 64 % (to[i] - from[i])
			}
			table.Resolve(modules[i], from[i]+at)
		}
	}
	s := table.Stats()
	b.ReportMetric(100*float64(s.Hits)/float64(s.Hits+s.Misses), "hit-%")
	b.ReportMetric(float64(s.Bytes), "kept-B")
	b.ReportMetric(float64(s.Evictions), "evictions")
	var ms runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&ms)
	b.ReportMetric(float64(ms.HeapAlloc), "heap-B")
	b.ReportMetric(float64(peak(b)), "peak-RSS-B") // of the whole test program
	runtime.KeepAlive(table)
}

// peak returns the most memory that this program was resident with.
func peak(b *testing.B) uint64 {
	b.Helper()
	var use syscall.Rusage
	must.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &use))
	return uint64(use.Maxrss) << 10
}
