package symbol_test

import (
	"bytes"
	"io"
	"os"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/symbol"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// seeds are files that have their symbols in each of the places where they can be,
// and the debug file beside each.
func seeds(f *testing.F) [][2][]byte {
	var out [][2][]byte
	for _, s := range small(f) {
		out = append(out, s)
	}
	python, err := os.ReadFile(compile(f, "builtins.c", "-s", "-Wl,-z,noseparate-code"))
	must.NoError(f, err)
	out = append(out, [2][]byte{python, nil})
	// No section headers: what the dynamic loader reads.
	lib, err := os.ReadFile(compile(f, "lib.c", "-s", "-nostdlib", "-Wl,-z,noseparate-code", "-Wl,-z,norelro"))
	must.NoError(f, err)
	clear(lib[40:48])
	clear(lib[58:64])
	return append(out, [2][]byte{lib, nil})
}

// fuzzModule is a file with another beside it, wherever that is looked for.
func fuzzModule(b, debug []byte) symbol.Module {
	return symbol.Module{
		Path:   "/x/python3", // of which more is read than of others
		Open:   func() (symbol.File, error) { return symbol.NewMemory(b, "lib.so"), nil },
		Beside: func(string) (symbol.File, error) { return symbol.NewMemory(debug, "debug"), nil },
	}
}

// FuzzResolve: no file may panic, cost more than the budget, or begin a function
// behind an address that lies in it.
func FuzzResolve(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s[0], s[1], uint64(0x1010))
	}
	fuzzing.Run(f, func(t *testing.T, b, debug []byte, addr uint64) {
		const budget = 64 << 10
		table := symbol.New(symbol.Options{Budget: budget, Full: true})
		for _, a := range []uint64{addr, 0x1000, 0x1021, 0, 1<<64 - 1} {
			if got := table.Resolve(fuzzModule(b, debug), a); got.Name != "" && got.Offset > a {
				t.Fatalf("%+v for %#x", got, a)
			}
		}
		if s := table.Stats(); s.Bytes > budget {
			t.Fatalf("%+v", s)
		}
		if segments, err := symbol.ReadSegments(symbol.NewMemory(b, "")); err == nil {
			segments.Address(addr)
		}
	})
}

// small returns the seeds that TestEveryByte can change byte by byte, by what is in them.
func small(t testing.TB) map[string][2][]byte {
	anonymous := library(3, 1)
	id := idPart("\xab\xcd\xef")
	out := map[string][2][]byte{
		"symtab":     {anonymous, nil},
		"build id":   {assemble(codePart(3), id), assemble(append(functionParts(3, 1), id)...)},
		"debug link": {assemble(codePart(3), linkPart(anonymous)), anonymous},
	}
	if mini, ok := miniPart(t, anonymous); ok {
		out["debugdata"] = [2][]byte{assemble(codePart(3), mini), nil}
	}
	return out
}

// As they are, the seeds are read to the end: else changing them would test nothing.
func TestSeeds(t *testing.T) {
	for name, f := range small(t) {
		got := symbol.New(symbol.Options{}).Resolve(fuzzModule(f[0], f[1]), 0x1012)
		if got.Name != "function_1_1" || got.Offset != 2 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// Each byte of each seed changed, and each seed cut anywhere: random changes rarely
// meet the few bytes of a header that matter, so here all of them are met.
func TestEveryByte(t *testing.T) {
	tried := 0
	try := func(name string, b, debug []byte) {
		const budget = 64 << 10
		tried++
		table := symbol.New(symbol.Options{Budget: budget})
		for _, addr := range []uint64{0x1012, 0, 1<<64 - 1} {
			if got := table.Resolve(fuzzModule(b, debug), addr); got.Name != "" && got.Offset > addr {
				t.Fatalf("%s: %+v for %#x", name, got, addr)
			}
		}
		if s := table.Stats(); s.Bytes > budget {
			t.Fatalf("%s: %+v", name, s)
		}
	}
	for name, f := range small(t) {
		for which := range f {
			whole := f[which]
			for at := range whole {
				for _, value := range []byte{0, 0xff, whole[at] + 1} {
					changed := f
					changed[which] = bytes.Clone(whole)
					changed[which][at] = value
					try(name, changed[0], changed[1])
				}
				cut := f
				cut[which] = whole[:at]
				try(name, cut[0], cut[1])
			}
		}
	}
	if tried < 10000 {
		t.Errorf("only %d files tried", tried)
	}
}

// FuzzMemory: neither a perf map nor maps may panic or cost more than the budget.
func FuzzMemory(f *testing.F) {
	f.Add([]byte(maps), []byte("7f0000000100 40 a\n7f0000000100 50 b\n"), uint64(0x7f0000000110))
	f.Add([]byte(maps), []byte("ffffffffffffffff ffffffff a\n"), uint64(1<<64-1))
	fuzzing.Run(f, func(t *testing.T, maps, perf []byte, addr uint64) {
		const budget = 64 << 10
		table := symbol.New(symbol.Options{Budget: budget})
		p := symbol.Process{
			Maps:   func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(maps)), nil },
			Beside: func(string) (symbol.File, error) { return symbol.NewMemory(perf, "perf"), nil },
		}
		if got := table.ResolveMemory(p, addr); got.String() == "" || got.Name != "" && got.Offset > addr {
			t.Fatalf("%+v", got)
		}
		// A process alone may have more regions than the budget, but they are bounded.
		if s := table.Stats(); s.Bytes > budget+2*int64(len(maps)) {
			t.Fatalf("%+v for %d and %d bytes", s, len(maps), len(perf))
		}
	})
}
