package symbol_test

import (
	"path/filepath"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/symbol"
)

// TestBuiltins: of an interpreter without symbols the functions of its own modules are named by the tables in which it
// finds them itself, whether it lies at an address of its own or anywhere; nothing else is, and no other file.
func TestBuiltins(t *testing.T) {
	for kind, flags := range map[string][]string{
		"a library": {"-shared", "-fPIC"}, "a program": {"-pie", "-fPIE"},
		"a program at its own address": {"-no-pie", "-fno-pie"},
	} {
		dir := t.TempDir()
		whole := filepath.Join(dir, "whole")
		run(t, "cc", append([]string{"-O1", "-o", whole, filepath.Join("testdata", "builtins.c")}, flags...)...)
		stripped, other := filepath.Join(dir, "python3.12"), filepath.Join(dir, "libother.so")
		copyFile(t, whole, stripped)
		run(t, "strip", stripped)
		copyFile(t, stripped, other)
		table := symbol.New(symbol.Options{})
		for function, want := range map[string]string{
			"dumps": "_pickle_dumps", "loads": "_pickle_loads", "find_all": "re_Pattern_findall",
			"next_row": "re_Pattern_iternext", "helper": "", "strange": "",
		} {
			at := address(t, whole, function)
			for _, addr := range []uint64{at, at + size(t, whole, function) - 1} {
				if got := table.Resolve(module(stripped), addr).Name; got != want {
					t.Errorf("%s: %s is %q, want %q", kind, function, got, want)
				}
			}
			if got := symbol.New(symbol.Options{}).Resolve(module(other), at).Name; got != "" {
				t.Errorf("%s: %s of another file is %q", kind, function, got)
			}
			if got := table.Resolve(module(whole), at).Name; got != function {
				t.Errorf("%s: %s is %q where there are symbols", kind, function, got)
			}
		}
	}
}
